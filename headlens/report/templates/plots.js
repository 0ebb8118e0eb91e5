/* Small drawings, made anew when the room for them changes. Every one has its numbers in words beside it. */
const redraws = new Map();  // element -> what draws in it, for its width
const watcher = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (!target.isConnected) { watcher.unobserve(target); redraws.delete(target); continue; }
    redraws.get(target)?.();
  }
});

/* `plot(width)` makes a drawing for that many pixels. */
function plotted(plot, attributes = {}) {
  const holder = make("div", attributes);
  let drawn = 0;
  redraws.set(holder, () => {
    const width = Math.floor(holder.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    holder.replaceChildren(plot(width));
  });
  watcher.observe(holder);
  return holder;
}

/* Ends of the line on which a score is drawn. */
function reachOf(metric, ...others) {
  const seen = defined([...metric.values, metric.chance, ...others]);
  const low = Math.min(0, ...seen), high = Math.max(...seen);
  if (metric.scale === "signed") { const most = Math.max(high, -low) || 1; return [-most, most]; }
  if (metric.unit === "share") return [low, Math.max(1, high)];
  return [low, high > low ? high : low + 1];
}

/* A tick for each head, this one red; chance dashed, what it must beat a tall line, its interval a bar. */
function strip(metric, place, {value = metric.values[place], low, high, chance = metric.chance, rival} = {}, hasAxis = true) {
  const [from, to] = reachOf(metric, value, rival ?? null);
  return (width) => {
    const x = (number) => (5 + (width - 10) * (number - from) / (to - from)).toFixed(1);
    const base = 24, lines = [];
    const ticks = [...new Set(defined(metric.values).map(x))].map((at) => `M${at} 12v11`).join("");
    lines.push(draw("path", {class: "ticks", d: ticks}), draw("path", {class: "axis", d: `M5 ${base}H${width - 5}`}));
    if (chance !== null && chance >= from && chance <= to) lines.push(draw("path", {class: "chance", d: `M${x(chance)} 6v22`}));
    if (rival !== undefined) lines.push(draw("path", {class: "rival", d: `M${x(rival)} 6v22`}));
    if (low !== undefined && low !== null) lines.push(draw("path", {class: "reach", d: `M${x(Math.max(from, low))} ${base}H${x(Math.min(to, high))}`}));
    if (value !== null) {
      lines.push(draw("path", {class: "me", d: `M${x(value)} ${base}V9`}));
      lines.push(draw("path", {class: "tip", d: `M${x(value)} 10l-4 -7h8z`}));
    }
    const marks = metric.unit === "share" && from === 0 && to === 1 ? [0, 0.25, 0.5, 0.75, 1] : from < 0 && to > 0 ? [from, 0, to] : [from, to];
    if (hasAxis) marks.forEach((mark, index) => {
      const anchor = index === 0 ? "start" : index === marks.length - 1 ? "end" : "middle";
      const words = mark === 0 || mark === 1 ? String(mark) : number(mark, metric.unit, 2);
      lines.push(draw("text", {x: index === 0 ? 1 : anchor === "end" ? width - 1 : x(mark), y: 40, "text-anchor": anchor}, words));
    });
    const height = hasAxis ? 44 : 30;
    return draw("svg", {class: "plot", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true"}, lines);
  };
}

/* The colours of a map from end to end, a tick above for each head, and chance by name. */
function colourBar(metric) {
  return (width) => {
    const edges = metric.edges, from = edges[0], to = edges[edges.length - 1];
    const x = (value) => 4 + (width - 8) * (value - from) / (to - from);
    const letters = metric.scale === "signed" ? "d" : "q", lines = [];
    const isBlankFirst = metric.scale === "chance" && edges.length !== 8;
    for (let step = 0; step + 1 < edges.length; step++) {
      const colour = isBlankFirst ? step - 1 : step;
      if (colour < 0) continue;
      lines.push(draw("rect", {x: x(edges[step]).toFixed(1), y: 16, height: 9, width: Math.max(0.5, x(edges[step + 1]) - x(edges[step])).toFixed(1), style: `fill:var(--hl-${letters}${colour})`}));
    }
    lines.push(draw("path", {class: "axis", d: `M4 25.5H${width - 4}`}));
    const ticks = [...new Set(defined(metric.values).map((value) => x(value).toFixed(1)))].map((at) => `M${at} 3v10`).join("");
    lines.push(draw("path", {class: "ticks", d: ticks}));
    const say = (at, words, anchor, look) => lines.push(draw("text", {x: at, y: 41, "text-anchor": anchor, class: look}, words));
    const best = metric.values[metric.top];
    const chance = metric.chance !== null && metric.chance >= from && metric.chance <= to ? x(metric.chance) : null;
    if (chance !== null) {
      lines.push(draw("path", {class: "chance", d: `M${chance.toFixed(1)} 1v30`}));
      const anchor = chance < 40 ? "start" : chance > width - 40 ? "end" : "middle";
      say(chance.toFixed(1), `chance ${number(metric.chance, metric.unit)}`, anchor, "strong");
    }
    const isAt = (end) => Math.abs(best - end) <= 1e-3 * (to - from);
    const named = (end) => (isAt(end) ? `${metric.end} ` : "") + number(isAt(end) ? best : end, metric.unit);
    const isFar = (at) => chance === null || Math.abs(chance - at) > 130;
    if (isFar(4)) say(4, named(from), "start");
    if (isFar(width - 4)) say(width - 4, named(to), "end");
    return draw("svg", {class: "plot", width, height: 46, viewBox: `0 0 ${width} 46`, "aria-hidden": "true"}, lines);
  };
}

/* Mean attention by relative position and to where heads rest, with the mean of all heads as a line. */
function positionProfile(place) {
  const barsOf = (listed, isRest) => listed
    .map(([words, index]) => ({words, isRest, value: data.metrics[index].values[place], all: defined(data.metrics[index].values)}))
    .filter((bar) => bar.value !== null)
    .map((bar) => ({...bar, mean: bar.all.reduce((sum, one) => sum + one, 0) / bar.all.length}));
  const bars = [...barsOf(data.profile, false), ...barsOf(data.rests, true)];
  if (!bars.length) return null;
  const most = Math.max(0.2, ...bars.map((bar) => Math.max(bar.value, bar.mean)));
  const words = bars.map((bar) => `${bar.words}: ${number(bar.value, "share", 2)}`).join(", ");
  return plotted((width) => {
    const gap = bars.some((bar) => bar.isRest) ? 16 : 0, room = (Math.min(width, 440) - gap) / bars.length, base = 112;
    const y = (value) => base - (base - 18) * value / most;
    const shapes = bars.flatMap((bar, index) => {
      const left = index * room + (bar.isRest ? gap : 0);
      return [
        draw("rect", {class: bar.isRest ? "rest" : "bar", x: (left + 4).toFixed(1), y: y(bar.value).toFixed(1), width: (room - 8).toFixed(1), height: (base - y(bar.value)).toFixed(1)}),
        draw("path", {class: "mean", d: `M${(left + 1).toFixed(1)} ${y(bar.mean).toFixed(1)}h${(room - 2).toFixed(1)}`}),
        bar.value >= 0.045 ? draw("text", {x: (left + room / 2).toFixed(1), y: (y(Math.max(bar.value, bar.mean)) - 4).toFixed(1), "text-anchor": "middle"}, number(bar.value, "share", 2)) : null,
        draw("text", {x: (left + room / 2).toFixed(1), y: base + 14, "text-anchor": "middle"}, bar.words),
      ];
    });
    const label = `Mean attention by relative position. ${words}.`;
    return draw("svg", {class: "plot", width, height: base + 20, viewBox: `0 0 ${width} ${base + 20}`, role: "img", "aria-label": label}, draw("path", {class: "axis", d: `M0 ${base + 0.5}H${Math.min(width, 440)}`}), shapes);
  }, {class: "profile"});
}
