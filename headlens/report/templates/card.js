/* The card of one head, made when it is asked for. */
const card = document.getElementById("card");
const MOST_ROLES = 4;  // with evidence on the card; further ones are folded

function key(look, words) {
  const marks = {
    me: draw("path", {class: "tip", d: "M5 10l-4 -7h8z"}),
    rival: draw("path", {class: "rival", d: "M5 0v12"}),
    chance: draw("path", {class: "chance", d: "M5 0v12"}),
    ticks: draw("path", {class: "ticks", d: "M2 1v10M5 1v10M8 1v10"}),
  };
  return make("span", {}, draw("svg", {width: 10, height: 12, viewBox: "0 0 10 12", "aria-hidden": "true"}, marks[look]), words);
}

function keysOf(metric, place, {value = metric.values[place], low, high, chance = metric.chance, rival, rivalName} = {}, heldOut = false) {
  const unit = metric.unit, reach = interval(low, high, unit);
  return make("p", {class: "keys"},
    key("me", `${nameOf(place)} ${number(value, unit)}${reach ? ` ${reach}` : ""}${heldOut ? " held out" : ""}`),
    rival === undefined ? null : key("rival", `${rivalName} ${number(rival, unit)}`),
    chance === null ? null : key("chance", `chance ${number(chance, unit)}`),
    metric.values[place] === null ? null : key("ticks", `all heads; rank ${counted(place, metric)}`),
  );
}

function evidenceOf(one, place) {
  const role = roleOf.get(one.role), metric = data.metrics[one.metric];
  const marks = {value: one.value, low: one.low, high: one.high, chance: one.chance ?? null, rival: one.nullName ? one.null : undefined, rivalName: one.nullName};
  // held out: the value that documents confirmed, which had no say; the ticks are on all documents
  const heldOut = metric !== undefined && one.sentence.includes("held-out");
  return make("div", {class: "role-evidence"},
    make("h4", {}, swatch({role, firm: one.firm}), capital(role.title), make("span", {class: "strength"}, one.firm ? "firm" : "tentative")),
    make("p", {}, `${nameOf(place)} ${one.sentence}.`),
    metric && metric.scale !== "none" ? [make("p", {class: "of"}, capital(metric.title)), plotted(strip(metric, place, marks), {class: "strip-holder"}), keysOf(metric, place, marks, heldOut)] : null,
  );
}

function folded(words, ...children) {
  return make("details", {}, make("summary", {}, words), children);
}

function rolesPart(place) {
  if (data.absent.includes(place)) return [make("p", {class: "cap"}, "No score is defined for this head.")];
  if (!data.roles) return [make("p", {class: "cap warn"}, "The self-check failed, so no role is told.")];
  const held = data.held[place] ?? [];
  if (held.length) {
    const told = held.map((one) => evidenceOf(one, place));
    const further = told.slice(MOST_ROLES);
    return [...told.slice(0, MOST_ROLES), further.length ? folded(`${further.length} more`, further) : null];
  }
  const nearest = data.nearest[place], metric = nearest && nearest.metric !== null ? data.metrics[nearest.metric] : null;
  return [make("div", {class: "role-evidence"},
    make("h4", {}, swatch(null), "No role"),
    make("p", {}, "No score is beyond a threshold, which is no proof that the head does nothing."),
    nearest ? make("p", {}, nearest.words) : null,
    metric ? [make("p", {class: "of"}, capital(metric.title)), plotted(strip(metric, place, ends(metric, place)), {class: "strip-holder"}), keysOf(metric, place, ends(metric, place))] : null,
  )];
}

function ends(metric, place) {
  return {low: metric.low?.[place], high: metric.high?.[place]};
}

function effectPart(place) {
  const sentence = data.effects[place];
  return sentence ? [make("h4", {class: "plain"}, "Taken out"), make("p", {class: "effect"}, `${capital(sentence)}.`)] : [];
}

function profilePart(place) {
  const plot = positionProfile(place);
  return plot ? [make("h4", {class: "plain"}, "Attention by relative position"), plot, make("p", {class: "cap"}, "Mean mass at each offset. Lines: the mean of all heads. The scale differs between heads.")] : [];
}

function alikePart(place) {
  const near = data.alike?.[place];
  if (!near || !near.length) return [];
  const rows = near.map(([other, distance]) => {
    const label = rolesOf(other)[0];
    return make("li", {}, swatch(label), make("a", {class: "head", href: `#${nameOf(other)}`}, nameOf(other)), make("span", {}, label ? label.role.title : data.roles ? "no role" : ""), make("span", {class: "num"}, number(distance, "share")));
  });
  const none = near[0][1] < data.near ? "" : `None is near, which would be under ${number(data.near, "share")}. `;
  return [make("h4", {class: "plain"}, "Nearest heads"), make("ol", {class: "alike"}, rows), make("p", {class: "cap"}, `${none}By Jensen-Shannon distance in nats: 0 is the same attention, .693 nothing in common.`)];
}

function scoreRow(metric, place, hasPicture) {
  const value = metric.values[place], reach = interval(metric.low?.[place], metric.high?.[place], metric.unit);
  const cell = (label, words, attributes = {}) => make("td", {role: "cell", class: "num", "data-label": label, ...attributes}, words);
  return make("tr", {role: "row"},
    make("th", {role: "rowheader", scope: "row", title: metric.meaning}, capital(metric.title), make("code", {}, metric.name)),
    hasPicture ? make("td", {role: "cell", class: "pic", "data-label": ""}, plotted(strip(metric, place, {}, false))) : null,
    cell("value", [make("b", {}, number(value, metric.unit)), reach ? make("small", {}, reach) : ""]),
    cell("chance", metric.chance === null ? "–" : number(metric.chance, metric.unit)),
    cell("rank", value === null ? "–" : counted(place, metric)),
  );
}

function scoreTable(caption, metrics, place, hasPicture) {
  const title = (words, look) => make("th", {role: "columnheader", scope: "col", class: look}, words);
  return make("table", {role: "table", class: `own${hasPicture ? "" : " bare"}`},
    make("caption", {class: hasPicture ? "vh" : undefined}, caption),
    make("thead", {role: "rowgroup"}, make("tr", {role: "row"}, title("Score"), hasPicture ? title("Among all heads") : null, title("Value", "num"), title("Chance", "num"), title("Rank", "num"))),
    make("tbody", {role: "rowgroup"}, metrics.map((metric) => scoreRow(metric, place, hasPicture))),
  );
}

function scoresPart(place) {
  const chosen = data.telling[place], rest = data.metrics.filter((_, index) => !chosen.includes(index));
  const told = chosen.map((index) => data.metrics[index]);
  const parts = [make("h4", {class: "plain"}, "Scores by which it differs most")];
  if (told.length) parts.push(scoreTable(`Scores of ${nameOf(place)} by which it differs most from other heads`, told, place, true));
  const all = rest.length ? folded(`All ${rest.length} other scores`) : null;
  all?.addEventListener("toggle", () => {
    if (all.children.length > 1) return;
    for (const [family, metrics] of byFamily(rest)) all.append(scoreTable(family, metrics, place, false));
  });
  return [...parts, all];
}

function byFamily(metrics) {
  const families = new Map();
  for (const one of metrics) families.set(one.family, [...(families.get(one.family) ?? []), one]);
  return families;
}

function whyChosen(example) {
  const role = roleOf.get(example.why), share = number(example.strength, "share", 2);
  if (!role || role.id === "broad") return `Largest share of a word: ${share} on average`;
  const title = capital(role.title);
  if (!example.asked) return `${title}: ${share} of the attention of its words, on average`;
  return example.asked === 1 ? `${title} in its only place: ${share} of the attention goes there`
    : `${title} in ${example.right} of ${example.asked} places: ${share} of the attention goes there on average`;
}

function exampleFigure(example) {
  const holder = make("div", {class: "arcs-holder"});
  return [make("figure", {}, holder, make("figcaption", {}, `${whyChosen(example)}. `, make("bdi", {class: "mut"}, example.text_id))), () => drawArcs(holder, example)];
}

function examplesPart(place) {
  if (!data.examples || typeof drawArcs !== "function") return [[], []];
  const found = drawArcs.examples(data.examples, Math.floor(place / data.heads), place % data.heads);
  const unshown = data.unshown[place], title = make("h4", {class: "plain"}, "On words of the corpus");
  if (!found.length) return [unshown ? [make("section", {class: "texts", "aria-label": "On words of the corpus"}, title, make("p", {class: "cap"}, unshown))] : [], []];
  const made = found.map(exampleFigure);
  const chosen = found.some((one) => one.asked)
    ? `Of the texts of the corpus that were run these are the ones in which the role shows most: the head at its best, not as it is on average. ${found.some((one) => one.shown.length) ? "Dotted and grey: arcs that are not what the role is about." : "What the role is about are special tokens, which are not drawn."}`
    : "These texts of the corpus were chosen for being the strongest: they show the head at its best, not as it is on average.";
  const words = `Arcs above the line lead to earlier words, those below to later ones; the dot is the word attended to, the width the share, and shares under .10 are left out. ${chosen}`;
  const section = make("section", {class: "texts", "aria-label": `Texts on which ${nameOf(place)} is strongest`}, title, make("p", {class: "cap"}, words, make("span", {class: "onscreen"}, " Point at a word, or move to it with the arrow keys, to single it out.")), made.map(([figure]) => figure));
  return [[section], made.map(([, start]) => start)];
}

function headOfCard(place) {
  const button = (words, label, action) => make("button", {type: "button", class: "btn", "aria-label": label, "data-action": action}, words);
  const chips = rolesOf(place).map((one) => make("li", {}, swatch(one), `${one.role.title}${one.firm ? "" : " (tentative)"}`));
  const nothing = data.absent.includes(place) ? "not defined" : data.roles ? "no role" : null;
  const pattern = data.classes && !data.absent.includes(place) ? `Pattern: ${data.classes[place]}` : "";
  return make("header", {class: "cardhead"},
    make("h3", {id: "card-title", tabindex: "-1"}, nameOf(place)),
    make("ul", {class: "chips", "aria-label": "Roles"}, chips.length ? chips : nothing && make("li", {}, swatch(null), nothing)),
    pattern ? make("span", {class: "pattern", title: "Classes of Kovaleva et al. 2019, section 4.1, from the roles of the head"}, pattern) : null,
    make("div", {class: "btns"}, button("←", "Previous head", "previous"), button("→", "Next head", "next"), button("Close", "Close the card", "close")),
  );
}

function fillCard(place) {
  const [texts, starts] = examplesPart(place);
  if (data.absent.includes(place)) card.replaceChildren(headOfCard(place), ...rolesPart(place));
  else card.replaceChildren(
    headOfCard(place),
    make("div", {class: "cardgrid"},
      make("div", {}, rolesPart(place), effectPart(place)),
      make("div", {}, profilePart(place), alikePart(place)),
    ),
    ...texts,
    make("section", {class: "own-scores", "aria-label": `Scores of ${nameOf(place)}`}, scoresPart(place)),
  );
  card.setAttribute("aria-labelledby", "card-title");
  card.hidden = false;
  for (const start of starts) start();
}
