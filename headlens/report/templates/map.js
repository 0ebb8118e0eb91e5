/* The head map: what its cells show, which one has the focus, and which role is singled out. */
const headMap = (() => {
  const grid = document.getElementById("heads"), cells = [...grid.querySelectorAll("tbody a")];
  const select = document.getElementById("paint"), scale = document.getElementById("scale");
  const legend = document.getElementById("mapwords"), read = document.getElementById("read");
  const buttons = [...document.querySelectorAll("button.role")];
  const isWide = grid.classList.contains("wide");
  let single = null;  // id of the role that is singled out
  let current = 0;

  function offer() {
    if (data.roles) select.append(make("option", {value: "roles"}, "roles"));
    const families = new Map();
    data.metrics.forEach((metric, place) => {
      if (metric.scale === "none") return;
      if (!families.has(metric.family)) families.set(metric.family, make("optgroup", {label: metric.family}));
      families.get(metric.family).append(make("option", {value: place}, capital(metric.title)));
    });
    select.append(...families.values());
  }

  const shown = () => (select.value === "" || select.value === "roles" ? null : data.metrics[select.value]);

  function toldRoles(place) {
    if (data.absent.includes(place)) return "not defined";
    if (!data.roles) return "roles withheld";
    const told = rolesOf(place).map(({role, firm}) => `${role.title}, ${firm ? "firm" : "tentative"}`);
    return told.length > 1 ? `${told[0]}; also ${told.slice(1).join("; ")}` : told[0] ?? "no role";
  }

  function toldScore(metric, place) {
    const isBlank = metric.scale === "chance" && metric.steps[place] === " ";
    const known = metric.chance === null ? "" : `, chance ${number(metric.chance, metric.unit)}`;
    return `${metric.title} ${number(metric.values[place], metric.unit)}${known}${isBlank ? ", not above chance" : ""}`;
  }

  function inCell(value, metric) {
    if (isWide) return "";
    const most = Math.max(...metric.edges.map(Math.abs));
    const text = number(value, metric.unit, most < 2 ? 2 : most < 20 ? 1 : 0);
    return text.startsWith("<") ? `.${"0".repeat(text.length - 2)}` : text;
  }

  function paintRole(cell, place) {
    const all = rolesOf(place), label = all.find(({role}) => role.id === single) ?? all[0];
    const further = all.find((one) => one !== label);
    const look = label ? `t-${label.role.kind}${label.firm ? "" : " tentative"}` : "none";
    cell.parentElement.className = data.absent.includes(place) ? "gap" : look;
    const parts = label ? [make("b", {}, label.role.letter), further ? make("i", {}, further.role.letter) : ""] : ["·"];
    cell.replaceChildren(...(data.absent.includes(place) ? [] : parts));
  }

  function paintScore(cell, place, metric) {
    const step = metric.steps[place], holder = cell.parentElement;
    holder.className = step === "-" ? "gap" : step === " " ? "low" : `step ${metric.scale === "signed" ? "d" : "q"}${step}`;
    if (place === metric.top) holder.classList.add("most");
    cell.replaceChildren(step === "-" ? "" : make("b", {}, inCell(metric.values[place], metric)));
  }

  function paint() {
    const metric = shown();
    grid.classList.toggle("scored", metric !== null);
    cells.forEach((cell, place) => {
      if (metric) paintScore(cell, place, metric); else paintRole(cell, place);
      if (single && !rolesOf(place).some(({role}) => role.id === single)) cell.parentElement.classList.add("dim");
      cell.setAttribute("aria-label", `${nameOf(place)}: ${metric ? toldScore(metric, place) : toldRoles(place)}`);
    });
    if (legend) legend.hidden = metric !== null;
    scale.replaceChildren(...(metric ? [plotted(colourBar(metric)), make("p", {class: "cap"}, make("b", {}, `${capital(metric.title)}. `), wordsOf(metric))] : []));
  }

  function wordsOf(metric) {
    const words = {
      signed: "Blue: above 0. Ochre: below 0.",
      plain: "The stronger the colour, the higher the value.",
      chance: metric.steps.trim().replaceAll("-", "") ? "Colour starts above chance; a head at or below it stays blank." : "No head is above chance, so every cell stays blank.",
    }[metric.scale];
    const gaps = metric.steps.includes("-") ? " Crossed out: not defined for that head." : "";
    return `${metric.meaning} ${words} Each tick is a head. Underlined: the ${metric.end}, ${nameOf(metric.top)}.${gaps}`;
  }

  function say(place) {
    const metric = shown();
    const told = metric ? [toldScore(metric, place), data.roles ? `; ${toldRoles(place)}` : ""].join("") : toldRoles(place);
    read.replaceChildren(make("b", {}, nameOf(place)), ` ${capital(told)}.`);
  }

  function move(place) {
    cells[current].tabIndex = -1;
    current = place;
    cells[current].tabIndex = 0;
  }

  function keyed(event) {
    const layer = Math.floor(current / data.heads), head = current % data.heads, last = data.heads - 1;
    const rows = event.ctrlKey ? {Home: 0, End: data.layers - 1} : {};
    const to = {
      ArrowRight: [layer, Math.min(head + 1, last)],
      ArrowLeft: [layer, Math.max(head - 1, 0)],
      ArrowDown: [Math.min(layer + 1, data.layers - 1), head],
      ArrowUp: [Math.max(layer - 1, 0), head],
      Home: [rows.Home ?? layer, 0],
      End: [rows.End ?? layer, last],
    }[event.key];
    if (event.key === " ") { event.preventDefault(); cells[current].click(); }
    if (!to || event.altKey || event.metaKey) return;
    event.preventDefault();
    focus(to[0] * data.heads + to[1]);
  }

  function focus(place) {
    move(place);
    cells[place].focus();
  }

  function singleOut(button) {
    single = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.role;
    for (const one of buttons) one.setAttribute("aria-pressed", one.dataset.role === single);
    paint();
  }

  function mark(place) {
    grid.querySelector("[aria-current]")?.removeAttribute("aria-current");
    if (place === null) return;
    cells[place].setAttribute("aria-current", "true");
    move(place);
  }

  offer();
  select.addEventListener("change", paint);
  if (!data.roles) paint();
  for (const button of buttons) {
    button.disabled = false;
    button.addEventListener("click", () => singleOut(button));
  }
  grid.addEventListener("keydown", keyed);
  for (const kind of ["focusin", "pointerover"]) grid.addEventListener(kind, (event) => {
    const place = cells.indexOf(event.target.closest?.("a"));
    if (place < 0) return;
    if (kind === "focusin") move(place);
    say(place);
  });
  return {focus, mark, holds: (node) => grid.contains(node)};
})();
