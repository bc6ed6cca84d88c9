// Which view is shown, and the one stream that all of them follow.

import { byId, setText } from "./dom.js";
import { showConfiguration } from "./configuration.js";
import { showNow } from "./now.js";
import { showRuns } from "./runs.js";
import { showThrownAway, tellLatestTrip } from "./thrown_away.js";

const VIEWS = {
  now: () => {},
  "thrown-away": showThrownAway,
  runs: showRuns,
  configuration: showConfiguration,
};
const LEDGERS = ["thrown-away", "runs"]; // the views that are read again
const READ_AGAIN_MS = 15000; // prices come seconds to minutes after a trip
const AGAIN_AFTER_MS = 5000; // after a refusal, which the browser takes for final
const links = [...document.querySelectorAll("nav a")];

function shownView() {
  const asked = location.hash.slice(1);
  return Object.hasOwn(VIEWS, asked) ? asked : "now";
}

function route() {
  const view = shownView();
  for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== view;
  for (const link of links) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${links.find((link) => link.hash === `#${view}`).textContent}: loopguard console`;
  VIEWS[view]();
}

function readAgain() {
  if (!document.hidden && LEDGERS.includes(shownView())) VIEWS[shownView()]();
}

let stream = null;
let newestLoop = null;

/** Follow while somebody can see it: a tab in the background costs nothing. */
function follow() {
  if (document.hidden) {
    stream?.close();
    stream = null;
    tell("paused", "paused while hidden");
    return;
  }
  if (stream) return;
  stream = new EventSource("now");
  stream.addEventListener("open", () => tell("live", "live"));
  stream.addEventListener("error", () => {
    tell("lost", "no connection, trying again");
    if (stream?.readyState !== EventSource.CLOSED) return; // the browser tries by itself
    stream = null;
    setTimeout(follow, AGAIN_AFTER_MS);
  });
  stream.addEventListener("message", (event) => {
    const seen = JSON.parse(event.data);
    showNow(seen);
    if (seen.newest_loop === newestLoop) return;
    tellLatestTrip({ aloud: newestLoop !== null });
    readAgain(); // for the first too: it may have come after the view was read
    newestLoop = seen.newest_loop;
  });
}

function tell(state, words) {
  byId("connection").dataset.state = state;
  setText(byId("connection"), words);
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("view").focus();
});
addEventListener("hashchange", () => {
  route();
  byId("view").focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener("visibilitychange", () => {
  follow();
  readAgain();
});
setInterval(readAgain, READ_AGAIN_MS);
route();
follow();
