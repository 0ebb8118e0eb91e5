/* What holds the page together: the address, the card that is open, and light or dark. */
let open = null;

function show(place, {focus = false, pushes = true} = {}) {
  open = place;
  fillCard(place);
  headMap.mark(place);
  const title = document.getElementById("card-title");
  if (focus) title.focus({preventScroll: true});
  title.scrollIntoView({block: "nearest"});
  if (pushes) address("pushState", `#${nameOf(place)}`);
}

function close() {
  const place = open;
  open = null;
  card.hidden = true;
  card.replaceChildren();
  headMap.mark(null);
  address("replaceState", "#map");
  headMap.focus(place);
}

function address(how, hash) {
  try { if (location.hash !== hash) history[how](null, "", hash); } catch { /* a frame without an address of its own */ }
}

/* Not all browsers open what holds the place that a link leads to. */
function unfold(target) {
  const fold = target?.closest("details:not([open])");
  if (!fold) return;
  fold.open = true;
  target.scrollIntoView();
}

function follow() {
  const place = placeOf(location.hash);
  if (place === null) unfold(document.getElementById(location.hash.slice(1)));
  if (place !== null && place !== open) show(place, {pushes: false});
  else if (place === null && location.hash === "" && open !== null) { open = null; card.hidden = true; headMap.mark(null); }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const place = link && placeOf(link.getAttribute("href"));
  if (place === null || place === undefined || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const isPointed = headMap.holds(link) && event.detail > 0;  // a click in the map leaves the focus there
  show(place, {focus: !isPointed});
});
card.addEventListener("click", (event) => {
  const action = event.target.closest?.("button[data-action]")?.dataset.action;
  if (!action) return;
  if (action === "close") return close();
  show((open + (action === "next" ? 1 : heads - 1)) % heads);
  card.querySelector(`[data-action="${action}"]`).focus({preventScroll: true});
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && open !== null && event.target.tagName !== "SELECT") close();
});
window.addEventListener("popstate", follow);
window.addEventListener("hashchange", follow);
window.addEventListener("load", () => { if (open !== null) document.getElementById("card-title").scrollIntoView({block: "nearest"}); });

/* The rules for dark screens are switched on and off where they stand, so that every colour is written once. */
const darkRules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
  .filter((rule) => rule.media && /prefers-color-scheme:\s*dark/.test(rule.media.mediaText))
  .map((rule) => ({rule, auto: rule.media.mediaText}));

function wear(theme) {
  for (const {rule, auto} of darkRules) rule.media.mediaText = {auto, light: "not all", dark: "screen"}[theme];
  for (const button of document.querySelectorAll("[data-theme]")) button.setAttribute("aria-pressed", button.dataset.theme === theme);
}

for (const button of document.querySelectorAll("[data-theme]")) button.addEventListener("click", () => wear(button.dataset.theme));
document.documentElement.classList.add("has-scripts");
follow();
