// What the reader chose, in the page's address: ?decode_stepper.step=13&decode_stepper.machine=…
// Only what differs from the default stands there. A step is written as people count, from 1.

export function read(name) {
  const query = new URLSearchParams(location.search);
  const chosen = {};
  for (const key of ["step", "machine", "variant"]) {
    const value = query.get(`${name}.${key}`);
    if (value !== null) chosen[key] = value;
  }
  return chosen;
}

let waiting = new Map();
let timer = 0;

// Browsers refuse hundreds of changes of address in a few seconds, so playing writes in batches.
export function write(name, chosen) {
  waiting.set(name, chosen);
  clearTimeout(timer);
  timer = setTimeout(flush, 120, location.pathname);
}

function flush(pathname) {
  const all = waiting;
  waiting = new Map();
  if (location.pathname !== pathname) return; // the reader has left that page
  const query = new URLSearchParams(location.search);
  for (const [name, chosen] of all) {
    for (const [key, value] of Object.entries(chosen)) {
      if (value === null) query.delete(`${name}.${key}`);
      else query.set(`${name}.${key}`, value);
    }
  }
  const text = query.toString();
  const address = location.pathname + (text ? `?${text}` : "") + location.hash;
  history.replaceState(history.state, "", address); // keeps the scroll position stored there
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link) return;
  const here = link.origin === location.origin && link.pathname === location.pathname;
  if (link.closest(".lab-language")) {
    // the other language shows the same picture
    Object.assign(link, { search: location.search, hash: location.hash });
  } else if (here && link.hash && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    // A jump within the page keeps its figures and their state. Left alone, instant navigation would
    // fetch the page anew; it passes over links with a target.
    const goal = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (!goal) return;
    event.preventDefault();
    Object.assign(link, { search: location.search, target: "_self" });
    history.pushState(null, "", link.href);
    goal.scrollIntoView();
  }
}, { capture: true });
