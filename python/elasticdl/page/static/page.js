// Shows a job: asks the server from time to time, and puts what it says into the page. All text goes in as text, never as HTML.

import { clock, drawCurve, drawTimeline, figure } from "./drawing.js";

const LOOK = 700; // milliseconds between two looks
const HIDDEN_LOOKS = 15; // of which one is made while the page is in the background, for its title
const ENDS = ["finished", "failed", "interrupted", "killed"]; // states of jobs that change no more
const PATIENCE = 3000; // milliseconds after which a master that does not answer is taken to be away
const LONGEST = 30000; // milliseconds for curves over a slow line, and for logs of pods
const SELDOM = 3; // looks from one asking for curves and logs to the next
const POINTS_OF_A_LOOK = 700;
const MOST_ROWS = 500;
// Not decisions: parts of a change that has a line of its own, and what the curves show.
const LESSER = new Set(["evaluated", "sealed", "healing", "healed", "serving", "committed-first", "digest", "step", "snapshot", "copying", "copied"]);
const GRAVE = new Set(["lost", "evicted", "failed", "rolled-back", "replaced", "unsaved", "diverged"]);
const PHASES = ["starting", "healing", "training", "serving", "leaving", "lost"];
const AXES = { loss: 1, records_per_second: 0, workers: 0 };
const NAMES = { loss: "training loss", records_per_second: "records per second", workers: "workers" };

const at = (id) => document.getElementById(id);
const element = (name, text, kind) => {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

let token = "", lastEvent = 0, events = [], line = null, series = null, seen = null, looks = 0, curvesAt = 0, reached = 0, complete = false, follows = true, chosen = false;

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  token = sessionStorage.getItem("token") ?? "";
}

async function ask(path, patience = LONGEST) {
  const signal = AbortSignal.timeout(patience);
  const answer = await fetch(`api/v1/${path}`, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", signal });
  if (answer.status === 401) throw new Error("token");
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

const json = async (path, patience) => (await ask(path, patience)).json();
// A job that evaluates or predicts has records and no steps.
const makesSteps = () => !seen?.job || seen.job.step > 0 || !seen.job.records;
const worded = (phase) => (phase === "training" && !makesSteps() ? "at work" : phase);
const hasEnded = () => ENDS.includes(seen?.job?.state);

function notice(text) {
  if (at("notice").textContent !== text) at("notice").textContent = text; // it is read out when it changes
  at("notice").hidden = !text;
}

function workersAt(status, states, role) {
  return status.workers.filter((worker) => worker.name.startsWith(role) && states.includes(worker.state)).length;
}

function showStatus(body) {
  const job = body.job;
  document.title = job ? `${job.job_name}: ${job.state}` : "ElasticDL";
  at("name").textContent = job ? job.job_name : "The job starts";
  at("state").textContent = job ? job.state : "starting";
  at("state").className = `state ${job ? job.state : "starting"}`;
  at("job").classList.remove("old");
  at("reason").textContent = job ? job.reason : "its master has said nothing yet";
  if (!job) return;
  const epoch = job.num_epochs ? `${Math.min(job.epoch + 1, job.num_epochs)} of ${job.num_epochs}` : `${job.epoch + 1}`;
  const busy = ["training", "evaluating", "predicting", "processing", "draining", "sealed", "finishing"];
  const rows = [];
  if (job.done !== null) rows.push(["done", `${(job.done * 100).toFixed(1)} %`]);
  if (!hasEnded()) rows.push(["time left", job.seconds_left === null ? "–" : clock(job.seconds_left)]);
  if (job.step) rows.push(["epoch", epoch], ["step", figure(job.step)], ["training loss", figure(job.loss)]); // others evaluate or predict
  rows.push(["records", figure(job.records)], ["records per second", figure(job.records_per_second)]);
  if (!hasEnded()) {
    rows.push(["workers", `${workersAt(job, busy, "worker")} of ${job.wanted_workers}`]);
    if (job.wanted_servers) rows.push(["servers", `${workersAt(job, ["serving"], "ps")} of ${job.wanted_servers}`]);
    if (job.slots_alone) rows.push(["slots without a second copy", figure(job.slots_alone)]);
  }
  if (job.step) {
    rows.push(["goodput", body.goodput === null ? "–" : `${(body.goodput * 100).toFixed(1)} %`]);
    if (body.evaluation_seconds) rows.push(["time in evaluations", clock(body.evaluation_seconds)]);
    rows.push(["since the first step", clock(body.seconds_since_first_step)]);
  }
  at("figures").replaceChildren(...rows.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  at("done").hidden = job.done === null;
  if (job.done !== null) at("done").value = job.done;
  at("members").hidden = hasEnded() || !job.workers.length;
  at("members").classList.toggle("nobody-waits", job.workers.every((worker) => !worker.waits_for));
  at("members").tBodies[0].replaceChildren(...job.workers.map((worker) => {
    const row = document.createElement("tr");
    row.dataset.process = worker.name;
    row.append(element("td", worker.name, "process"), element("td", worker.state), element("td", worker.waits_for));
    return row;
  }));
}

function showEvents() {
  const all = at("all").checked;
  const shown = events.filter((event) => all || !LESSER.has(event.kind)).slice(-MOST_ROWS).reverse();
  at("events").tBodies[0].replaceChildren(...shown.map((event) => {
    const row = element("tr", "", GRAVE.has(event.kind) ? "grave" : "");
    const text = !event.worker || event.text.includes(event.worker) ? event.text : `${event.worker} ${event.text}`;
    const when = element("td", clock(event.time - (line ? line.began : event.time)), "time");
    when.title = new Date(event.time * 1000).toLocaleString();
    row.append(when, element("td", event.kind, "kind"), element("td", text, "text"));
    return row;
  }));
}

function showCurves() {
  const order = ["loss", ...Object.keys(series).filter((name) => !(name in AXES)).sort(), "records_per_second", "workers"];
  const names = order.filter((name) => series[name]?.length);
  const kept = [...at("curves").children];
  if (kept.map((one) => one.dataset.name).join() !== names.join()) {
    at("curves").replaceChildren(...names.map((name) => {
      const made = document.createElement("figure"), caption = document.createElement("figcaption");
      made.dataset.name = name;
      caption.append(element("span", `${NAMES[name] ?? name}${(AXES[name] ?? 1) ? ", by step" : ", by time"}`), element("b", ""));
      made.append(caption, element("div", "", "drawing"));
      return made;
    }));
  }
  for (const made of at("curves").children) {
    const points = series[made.dataset.name];
    made.querySelector("b").textContent = figure(points[points.length - 1][2]);
    drawCurve(made.lastChild, made.querySelector("span").textContent, points, AXES[made.dataset.name] ?? 1, line ? line.began : points[0][0], !(made.dataset.name in AXES));
  }
}

function showTimeline() {
  if (line && seen) drawTimeline(at("timeline"), line, line.ended ?? seen.time, worded);
}

function showKey() {
  const used = new Set(line.rows.flatMap((row) => row.spans.map((span) => span.phase)));
  const entries = PHASES.filter((phase) => used.has(phase)).map((phase) => [phase, worded(phase)]);
  if (line.evaluations.length) entries.push(["evaluation", "evaluation"]);
  if (line.marks.length) entries.push(["marked", "event of the whole job"]);
  at("key").replaceChildren(...entries.map(([kind, text]) => {
    const entry = document.createElement("span");
    entry.append(element("i", "", kind), text);
    return entry;
  }));
}

async function showLog() {
  const name = at("process").value;
  const body = await json(`logs?process=${encodeURIComponent(name)}`);
  const names = [...at("process").options].map((option) => option.value);
  if (names.join() !== body.processes.join()) {
    at("process").replaceChildren(...body.processes.map((name) => element("option", name)));
    at("process").value = body.processes.includes(name) ? name : body.processes[0] ?? "";
    if (at("process").value !== name) return showLog();
  }
  const log = at("log");
  log.textContent = body.lines.join("\n") || "nothing is written yet";
  if (follows) log.scrollTop = log.scrollHeight;
}

// The log of the process with which a job failed says more than its reason, unless another one is being read.
async function showFailedLog() {
  const failed = events.findLast((event) => event.kind === "failed");
  const process = [...at("process").options].find((option) => option.value === failed?.worker);
  if (!process || chosen) return;
  process.selected = true;
  await showLog();
}

async function look() {
  seen = await json("status", PATIENCE);
  reached = Date.now();
  notice("");
  at("job").hidden = false;
  showStatus(seen);
  if (!line || line.version !== seen.timeline) {
    line = await json("timeline");
  }
  showKey();
  showTimeline();
  if (seen.last_event > lastEvent) {
    const text = await (await ask(`events?since=${lastEvent}`)).text();
    events.push(...text.split("\n").filter(Boolean).map((one) => JSON.parse(one)));
    lastEvent = seen.last_event;
    const newest = events[events.length - 1];
    if (newest) lastEvent = newest.time;
    showEvents();
  }
  const isLast = hasEnded() && !complete;
  if (looks >= curvesAt || isLast) {
    series = (await json("series")).series;
    // Of a long curve a few more points change nothing that is seen, and each answer costs the master time.
    const points = Object.values(series).reduce((sum, one) => sum + one.length, 0);
    curvesAt = looks + SELDOM + Math.floor(points / POINTS_OF_A_LOOK);
    showCurves();
  }
  if (looks++ % SELDOM === 0 || isLast) await showLog();
  if (isLast) await showFailedLog();
  complete = hasEnded();
  return isLast;
}

// What there is stays, but says how old it is.
function showAway() {
  const job = seen?.job;
  document.title = `${job ? job.job_name : "ElasticDL"}: no answer`;
  at("job").classList.add("old");
  if (reached) at("state").textContent = `${job ? job.state : "starting"}, ${clock((Date.now() - reached) / 1000)} ago`;
  const open = `elasticdl status ${job ? job.job_name : "JOB"} --open`;
  notice(`No answer. A master that was lost is started again within seconds, and the page continues. If the job or its page has ended: ${open}`);
}

async function watch() {
  for (let turn = 0; ; turn++) {
    if (document.visibilityState === "visible" || turn % HIDDEN_LOOKS === 0) {
      try {
        // The master of a job that has ended waits until it is asked again: then all of it is here.
        if (await look()) await look();
      } catch (error) {
        if (error.message === "token") {
          sessionStorage.removeItem("token");
          at("job").hidden = true;
          notice("This token is not the job's: open the address that `elasticdl status JOB --open` prints.");
          return;
        }
        if (hasEnded()) {
          notice(`The job has ended; what is here does not change any more. To see it again: elasticdl status ${seen.job.job_name} --open`);
          return;
        }
        showAway();
      }
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK));
  }
}

takeToken();
at("all").addEventListener("change", showEvents);
at("process").addEventListener("change", () => {
  chosen = follows = true;
  void showLog().catch(() => {});
});
at("log").addEventListener("scroll", ({ target }) => { follows = target.scrollTop + target.clientHeight >= target.scrollHeight - 5; });
new ResizeObserver(() => {
  showTimeline();
  if (series) showCurves();
}).observe(at("curves"));
if (token) {
  notice("");
  await watch();
}
