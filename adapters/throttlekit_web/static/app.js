"use strict";
// One page, no build. Text from the store is set as text, never as HTML: the server's CSP forbids the latter as well.

const EVERY_MS = 2000, STEPS = 45, FEWEST_STEPS = 9, STEP_S = 20;
const view = document.getElementById("view"), dialog = document.getElementById("dialog");
const store = { get: (name) => { try { return sessionStorage.getItem(name); } catch { return null; } },
                set: (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* private mode */ } } };
let about = { control: false, token: false, keys: false };
let shown = { refresh: async () => {} }, turn = 0, held = false;
const series = new Map();  // id -> Map(step number -> row)

// --- building elements -----------------------------------------------------------------------------------------

function fill(element, options, children) {
  for (const [name, value] of Object.entries(options ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, options, ...children) => fill(document.createElement(tag), options, children);
const svg = (tag, options, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), options, children);
const cell = (label, options, ...children) => h("td", { "data-label": label, ...options }, ...children);

// --- numbers for people ----------------------------------------------------------------------------------------

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole % 3600 / 60))} m`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole % 86400 / 3600)} h`;
}
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
const count = (number) => Number(number).toLocaleString("en", { maximumFractionDigits: 1 });
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const when = (seconds) => new Date(seconds * 1000).toLocaleString();
const waiting = (row) => !row.waiting ? "" : row.jobs === row.waiting ? `about ${count(row.jobs)}`
  : `about ${count(row.jobs)} (${count(row.waiting)} units)`;
const slowedText = (slowed) => `slowed down to ${slowed.to} by ${slowed.by === "adapt" ? "its adapt=" : "what downstream said is left"}, for ${duration(slowed.ends)} yet`;
const reasons = (denied) => Object.entries(denied).filter(([, number]) => number).map(([why, number]) => `${why} ${count(number)}`).join(", ");

function ruleText(rule, now) {
  const part = rule.part === null ? "" : ` of ${{ set: "tier", weight: "tenant" }[rule.what] ?? "key"} ${rule.part}`;
  const what = { set: `${part ? `rate${part} ` : ""}set to ${rule.rate}${rule.burst === null ? "" : ` burst ${rule.burst}`}`,
                 pause: `paused${part}`, shadow: "shadow mode: denies no job", weight: `weight${part} set to ${rule.weight}`, scale: `${rule.name.includes("*") ? `${rule.name} ` : ""}scaled to ${rule.factor}` }[rule.what];
  const left = rule.until === null || now === undefined ? "" : `, for ${duration(Math.max(0, rule.until - now))} yet`;
  return `${what} by ${rule.by}${left}`;
}

// --- talking to the server -------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (store.get("token")) headers.Authorization = `Bearer ${store.get("token")}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  const data = await response.json();
  if (response.ok) return data;
  throw Object.assign(new Error(data.error ?? `status ${response.status}`), { status: response.status });
}
const read = (path, query) => ask(`${path}?${new URLSearchParams(query)}`);
const send = (form) => ask("api/control", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(form) });

function remember(id, steps) {
  const known = series.get(id) ?? series.set(id, new Map()).get(id);
  for (const step of steps) known.set(step[0], step);
  for (const number of [...known.keys()].sort((a, b) => a - b).slice(0, -STEPS)) known.delete(number);
  return known;
}
/** From which step on all limits need their steps: the last two are read again, since they still grew. */
const since = (ids) => Math.max(0, Math.min(...ids.map((id) => Math.max(0, ...(series.get(id)?.keys() ?? [])) - 1)));

// --- charts ----------------------------------------------------------------------------------------------------

/** How many steps the charts show: as many as are known, up to 15 minutes. */
const stepsShown = (last) => Math.min(STEPS, Math.max(FEWEST_STEPS, ...[...series.values()].flatMap((rows) => [...rows.keys()].map((number) => last - number + 1))));

/** Bars of the last minutes. `parts`: [class, value of a row, its name] from the bottom up. A step that was not read is empty. */
function chart(rows, last, { parts, line = null, size = [450, 100], label, unit = count, spark = false, length = stepsShown(last) }) {
  const [width, height] = size, each = width / length, minutes = plural(length * STEP_S / 60, "minute", "minutes");
  const steps = Array.from({ length }, (_, at) => rows.get(last - length + 1 + at));
  const sums = steps.map((row) => row ? parts.reduce((sum, [, value]) => sum + Math.max(0, value(row)), 0) : 0);
  const gap = each * .06, top = Math.max(line ?? 0, ...sums) || 1, y = (value) => height - value / top * (height - 4);
  const paths = parts.map(([style, value], index) => {
    const d = steps.map((row, at) => {
      if (!row) return "";
      const below = parts.slice(0, index).reduce((sum, [, other]) => sum + Math.max(0, other(row)), 0);
      const high = Math.max(0, value(row));
      return high ? `M${at * each + gap} ${y(below)}h${each - 2 * gap}V${y(below + high)}h${2 * gap - each}z` : "";
    }).join("");
    return svg("path", { d, class: style });
  });
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
                             class: spark ? "spark" : "chart", "aria-label": `${label}, in the last ${minutes}: highest ${unit(Math.max(...sums))}, now ${unit(sums.at(-1))}` },
    ...paths, line !== null && svg("line", { x1: 0, x2: width, y1: y(line), y2: y(line), class: "rate" }));
  if (spark) return drawn;
  drawn.append(...steps.map((row, at) => row && svg("rect", { x: at * each, width: each, y: 0, height, class: "hit" },
    svg("title", {}, `${clock(row[0] * STEP_S)}: ${parts.map(([, value, name]) => `${name} ${unit(Math.max(0, value(row)))}`).join(", ")}`))).filter(Boolean));
  return h("figure", {},
    h("figcaption", {}, h("span", {}, label), h("span", { class: "quiet" }, `highest ${unit(Math.max(...sums))}`)),
    drawn, h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, `${minutes} ago`), h("span", {}, "now")));
}
function sparkline(row, last) {
  const short = (step) => step[2] + step[3] > 0;
  return chart(remember(row.id, row.steps), last, { spark: true, size: [180, 36], label: "Units passed in 20 s", line: row.per_step,
    parts: [["f-bar", (step) => short(step) ? 0 : step[1]], ["f-short", (step) => short(step) ? step[1] : 0]] });
}
function charts(row, last) {
  const rows = series.get(row.id) ?? new Map(), show = (options) => chart(rows, last, options);
  return h("div", { class: "charts" },
    show({ label: row.slots ? "Slots given in 20 s" : "Units passed in 20 s", line: row.per_step, parts: [["f-bar", (step) => step[1], "passed"]] }),
    show({ label: "Jobs that wait", parts: [["f-short", (step) => step[5], "about"]] }),
    show({ label: "Longest wait", unit: duration, parts: [["f-short", (step) => step[4], "waited"]] }),
    show({ label: "Denials in 20 s", parts: [["f-short", (step) => step[2], "denied"], ["f-paused", (step) => step[3], "paused"]] }),
    row.downstream_429 ? chart(new Map(row.steps_429.map((step) => [step[0], step])), last, { length: STEPS, label: "429s of downstream in 20 s", parts: [["f-short", (step) => step[1], "429s"]] }) : null);
}
function use(row) {
  if (row.used === null) return "";
  const part = Math.min(1, row.used / (row.capacity || 1)), full = part >= .9;
  return [h("span", { class: full ? "short" : "" }, `${count(row.used)}/${count(row.capacity)}`),
    svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", class: "use", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 6, class: "fill" }), svg("rect", { width: part * 100, height: 6, class: full ? "f-short" : "f-bar" }))];
}

// --- the views -------------------------------------------------------------------------------------------------

const tile = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, " ", note ? h("small", {}, note) : null));
const state = { order: "wait", filter: "" };

function limitsView() {
  const tiles = h("dl", { class: "tiles" }), body = h("tbody", {}), note = h("p", { class: "quiet", "aria-live": "polite" });
  const filter = h("input", { type: "search", id: "filter", placeholder: "Filter by name  /", "aria-label": "Filter limits by name", value: state.filter,
                              oninput: () => { state.filter = filter.value; refresh(); } });
  const order = h("select", { onchange: () => { state.order = order.value; refresh(); } },
    ...[["wait", "longest waits"], ["use", "fullest"], ["denied", "most denied"], ["name", "name"]].map(([value, text]) => h("option", { value, selected: value === state.order }, text)));
  const heads = [["Limit"], ["Now", "n"], ["Passed lately"], ["Last minute", "n"], ["Waiting", "n"], ["Last starts in", "n"], ["Oldest wait", "n"], ["Denied in the last minute"]];
  view.replaceChildren(h("h2", { class: "skip" }, "Limits"), tiles,
    h("div", { class: "bar" }, filter, h("label", {}, "First: ", order)),
    h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ...heads.map(([text, style]) => h("th", { scope: "col", class: style }, text)))), body)), note);
  const known = new Set();
  async function refresh() {
    const mine = ++turn, asked = { ...state };
    const data = await read("api/limits", { order: asked.order, filter: asked.filter, since: known.size ? since([...known]) : 0 });
    if (mine !== turn) return;
    const fresh = data.limits.filter((row) => !known.has(row.id));
    if (known.size && fresh.length) { known.clear(); return refresh(); }  // with all the steps of the new ones
    known.clear();
    head(data);
    tiles.replaceChildren(tile("Waiting", data.waiting ? `about ${count(data.waiting)}` : "none", "in all lines: a job may be in several"), tile("Oldest wait", duration(data.oldest || null) || "none", "in the last minute"),
      tile("Denials", count(data.denials), "in the last minute"), tile("429s", count(data.downstream_429), "of downstream, in the last 15 minutes"), tile("Paused limits", count(data.paused), data.slowed ? `${count(data.slowed)} slowed down` : null));
    const last = Math.floor(data.now / STEP_S), focused = document.activeElement?.dataset?.id;
    body.replaceChildren(...data.limits.map((row) => { known.add(row.id); return limitRow(row, data.now, last); }));
    if (focused) body.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    note.textContent = data.of === 0 ? (asked.filter ? "No limit has this in its name." : "Nothing was decided in the last hour: no worker has used a limit with this store.")
      : data.of > data.limits.length ? `${data.limits.length} of ${data.of} limits are shown: filter by name to see others.` : "";
  }
  return { refresh };
}
function tags(row) {
  return [row.rules.some((rule) => rule.what === "pause" && rule.part === null) && h("span", { class: "tag paused" }, "paused by an operator"),
    row.paused !== null && h("span", { class: "tag paused" }, `paused for ${duration(row.paused)}`),
    row.slowed !== null && h("span", { class: "tag short" }, row.keyed ? "a key is slow" : "slow"),
    row.used !== null && row.used >= row.capacity && h("span", { class: "tag short" }, row.keyed ? "a key is full" : "full"),
    row.downstream_429 > 0 && h("span", { class: "tag short", title: "Answers of downstream in the last 15 minutes that paused it" }, `${plural(row.downstream_429, "429", "429s")}`),
    row.idle && h("span", { class: "tag quiet" }, "not used")];
}
function ruleLines(row, now) {
  return row.rules.map((rule) => h("div", { class: "quiet" }, h("span", { class: "paused data" }, ruleText(rule, now)),
    rule.refused && h("span", { class: "bad data" }, ` Workers do not follow: ${rule.refused}`)));
}
function limitRow(row, now, last) {
  return h("tr", { class: row.idle ? "idle" : null },
    h("td", {}, h("a", { href: `#/limit/${encodeURIComponent(row.id)}`, "data-id": row.id, class: "name" }, row.name), " ", ...tags(row),
      h("div", { class: "quiet data" }, row.definition), row.slowed !== null && h("div", { class: "quiet" }, `${row.keyed ? "the slowest key: " : ""}${slowedText(row.slowed)}`), ...ruleLines(row, now)),
    cell(row.keyed ? "Now, fullest key" : "Now", { class: "n" }, use(row)),
    cell("Passed lately", { class: "wide" }, sparkline(row, last)),
    cell("Last minute", { class: "n" }, count(row.units), row.share !== null && h("div", { class: "quiet" }, `${Math.round(row.share * 100)} %`)),
    cell("Waiting", { class: "n" }, waiting(row)),
    cell("Last starts in", { class: "n" }, duration(row.starts)),
    cell("Oldest wait", { class: "n" }, duration(row.wait || null)),
    cell("Denied", { class: "quiet wide" }, reasons(row.denied)));
}

function limitView(id) {
  const top = h("section", {}), keys = keysPane(id);
  view.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← All limits")), top, keys.element);
  async function refresh() {
    const mine = ++turn;
    const data = await read("api/limit", { id, since: since([id]) });
    if (mine !== turn) return;
    const row = data.limit, last = Math.floor(data.now / STEP_S), pressed = document.activeElement?.dataset?.verb;
    remember(id, row.steps);
    keys.show(row);
    const act = (verb, text) => h("button", { type: "button", "data-verb": verb, onclick: () => change(verb, row) }, text);
    top.replaceChildren(
      h("h2", {}, h("span", { class: "data" }, row.name), " ", ...tags(row)), h("p", { class: "quiet data" }, row.definition),
      row.slowed === null ? "" : h("p", { class: "short" }, `${row.keyed ? "The slowest key is " : "It is "}${slowedText(row.slowed)}.`),
      h("dl", { class: "tiles" },
        tile(row.keyed ? "Now, fullest key" : "Now", row.used === null ? "–" : `${count(row.used)} / ${count(row.capacity)}`), tile("Last minute", `${count(row.units)} ${row.slots ? "slots" : "units"}`, row.share === null ? null : `${Math.round(row.share * 100)} % of the rate`),
        tile("Waiting", waiting(row) || "none", row.keyed ? "of the keys below" : null), tile("Last starts in", duration(row.starts) || "–"), tile("Oldest wait", duration(row.wait || null) || "none", "in the last minute"),
        tile("Denials", count(row.denials), reasons(row.denied)), tile("429s", count(row.downstream_429), "of downstream, in the last 15 minutes"),
        row.mean_hold !== null && tile("A slot is held", duration(row.mean_hold), "on average"), row.oldest_hold !== null && tile("Oldest holder", duration(row.oldest_hold))),
      row.rules.length ? h("div", {}, h("h3", {}, "Rules in force"), rulesTable(row.rules, data.now)) : "",
      about.control ? h("div", { class: "bar" }, act("pause", "Pause…"), act("set", "Change the rate…"), act("scale", "Scale…"), act("shadow", "Shadow mode…"), act("reset", "Reset…")) : "",
      charts(row, last),
      row.keyed ? h("div", {}, h("h3", {}, "Most pressing keys"), keyTable(data.keys)) : "",
      data.tenants.length ? h("div", {}, h("h3", {}, "Tenants, last minute"), tenantTable(data.tenants)) : "",
      ...data.holders.filter((each) => each.holders.length).map((each) => h("div", {}, h("h3", {}, "Holders", each.key && h("span", { class: "data" }, ` of ${each.key}`)),
        h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Job"), h("th", { scope: "col", class: "n" }, "Slots"), h("th", { scope: "col", class: "n" }, "Held for"))),
          h("tbody", {}, ...each.holders.map((holder) => h("tr", {}, h("td", { class: "data" }, holder.job || "(not a job)"), h("td", { class: "n" }, String(holder.slots)), h("td", { class: "n" }, duration(holder.held))))))))));
    if (pressed) top.querySelector(`[data-verb="${CSS.escape(pressed)}"]`)?.focus({ preventScroll: true });
  }
  return { refresh };
}
function tenantTable(tenants) {
  const heads = [["Tenant"], ["Weight", "n"], ["Units", "n"], ["Part", "n"], ["Longest wait", "n"]];
  return h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ...heads.map(([text, style]) => h("th", { scope: "col", class: style }, text)))),
    h("tbody", {}, ...tenants.map((each) => h("tr", {}, h("td", {}, h("span", { class: "name" }, each.tenant || "(no name)")),
      cell("Weight", { class: "n" }, `${each.weight}`), cell("Units", { class: "n" }, count(each.units)), cell("Part", { class: "n" }, `${Math.round(each.part * 100)} %`),
      cell("Longest wait", { class: "n" }, duration(each.wait || null) || "none"))))));
}
function keyTable(keys) {
  if (!keys.length) return h("p", { class: "quiet" }, "None.");
  const heads = [["Key"], ["Now", "n"], ["Waiting", "n"], ["Last starts in", "n"], ["Units, last minute", "n"], ["Denials, last minute", "n"]];
  return h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ...heads.map(([text, style]) => h("th", { scope: "col", class: style }, text)))),
    h("tbody", {}, ...keys.map((key) => h("tr", {}, h("td", {}, h("span", { class: "name" }, key.key || "(empty)"), key.paused !== null && h("span", { class: "tag paused" }, `paused for ${duration(key.paused)}`), key.slowed !== null && h("span", { class: "tag short" }, slowedText(key.slowed))),
      cell("Now", { class: "n" }, use(key)), cell("Waiting", { class: "n" }, waiting(key)), cell("Last starts in", { class: "n" }, duration(key.starts)),
      cell("Units, last minute", { class: "n" }, count(key.units)), cell("Denials, last minute", { class: "n" }, count(key.denials)))))));
}
/** All keys of a limit in pages. A search goes on by itself, in bounded requests, until a page is full. */
function keysPane(id) {
  const element = h("section", { hidden: true }), list = h("div", {}), note = h("p", { class: "quiet", "aria-live": "polite" });
  const search = h("input", { type: "search", id: "search", "aria-label": "Search a key", placeholder: about.keys ? "Part of a key  /" : "A whole key, or part of its digest  /" });
  const next = h("button", { type: "button", onclick: () => load(cursors.at(-1)) }, "Next page"), back = h("button", { type: "button", onclick: () => { cursors.splice(-2); load(cursors.at(-1) ?? ""); } }, "Previous page");
  let cursors = [], run = 0, begun = false;
  element.append(h("h3", {}, "All keys"), h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); cursors = []; load(""); } }, search, h("button", { type: "submit" }, "Search"), back, next), list, note);
  async function load(cursor) {
    const mine = ++run, sought = search.value, found = new Map();
    let looked = 0, data;
    back.disabled = next.disabled = true;
    try {
      do {
        data = await read("api/keys", { id, cursor, search: sought });
        if (mine !== run) return;
        for (const key of data.keys) found.set(key.key, key);
        looked += data.looked;
        cursor = data.cursor;
        note.textContent = `Looked at ${count(Math.min(looked, data.of))} of the ${count(data.of)} keys of all limits…`;
      } while (cursor && found.size < 50);
    } catch (error) { if (mine === run) note.textContent = error.message; return; }
    cursors.push(cursor);
    list.replaceChildren(keyTable([...found.values()]));
    next.disabled = !cursor;
    back.disabled = cursors.length < 2;
    note.textContent = `Page ${cursors.length}, ${found.size} keys${cursor ? "" : ": the last one"}. Kept are keys that were decided on in the last hour, 100,000 of the whole fleet.`;
  }
  return { element, show: (row) => { element.hidden = !row.keyed; if (row.keyed && !begun) { begun = true; load(""); } } };
}

function jobView(id) {
  const answer = h("div", { "aria-live": "polite" });
  const input = h("input", { type: "search", id: "job", "aria-label": "Job id", placeholder: "Job id  /", value: id, size: 40 });
  view.replaceChildren(h("h2", {}, "Why does this job wait?"), h("p", { class: "quiet" }, "The framework's own id: Dramatiq's message_id, RQ's job id, Celery's task id. With taskiq and Dramatiq every job that waits is known; of others the last 10,000 that were denied, for an hour."),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); location.hash = `#/job/${encodeURIComponent(input.value.trim())}`; } }, input, h("button", { type: "submit", class: "strong" }, "Explain")), answer);
  async function refresh() {
    if (!id) return input.focus();
    const mine = ++turn, job = await read("api/job", { id });
    if (mine === turn) answer.replaceChildren(...explained(id, job));
  }
  return { refresh };
}
function explained(id, job) {
  const name = h("b", { class: "data" }, id), fact = (what, ...text) => [h("dt", {}, what), h("dd", { class: "data" }, ...text)];
  if (job.state === "unknown") return [h("p", {}, "Job ", name, " is not known: it was not denied in the last hour, or too many others were.")];
  const times = job.deferrals === 1 ? "once" : `${count(job.deferrals)} times`, ago = (at) => `${duration(Math.max(0, job.now - at))} ago`;
  if (job.state === "allowed") return [h("p", {}, "Job ", name, ` does not wait any more: it was allowed to run ${ago(job.decided)}.`), h("dl", { class: "facts" }, ...fact("It had waited", `${duration(Math.max(0, job.decided - job.since))}, deferred ${times}`))];
  if (job.state === "unused") return [h("p", {}, "Job ", name, ` was denied ${ago(job.decided)}, by a limit that no worker uses any more.`)];
  const ahead = (job.due ?? 0) - job.now, held = job.reason === "paused" && job.rules.some((rule) => rule.what === "pause");
  return [h("p", {}, "Job ", name, " waits for ", h("a", { href: `#/limit/${encodeURIComponent(job.id)}`, class: "name" }, job.limit), job.key && h("span", { class: "data" }, `, key ${job.key}`), `: ${job.definition}.`),
    h("dl", { class: "facts" }, ...fact("Since", `${clock(job.since)}, ${ago(job.since)}`), ...fact("Deferred", `${times}${job.decided ? `, the last time ${ago(job.decided)}` : ""}: ${job.reason}`),
      ...(job.place === "woken" ? fact("Its turn", "now: it is on its way to a worker, or waits for a free one") : held ? fact("Tries again", `${ahead > 0 ? `in about ${duration(ahead)}` : "now"}; it keeps its position`)
        : job.place === "kept" ? fact("Its turn", "not known: another of its limits holds it back; it keeps its position")
        : ahead > 0 ? [...fact("Its turn", `in about ${duration(ahead)}, at ${clock(job.due)}`), ...fact("Before it", job.before === null ? "not known" : `about ${count(job.before)} of the ${count(job.waiting)} that wait`)]
        : fact("Its turn", `was ${duration(-ahead)} ago: it is on its way to a worker, or waits for a free one`)),
      ...(job.unanswered ? fact("Its worker", "does not answer: jobs of other workers pass before it") : []),
      ...fact("The limit now", `${count(job.used)} of ${count(job.capacity)} used`), ...(job.paused === null ? [] : fact("Paused", `for ${duration(job.paused)} yet`)), ...(job.slowed === null ? [] : fact("The pace", slowedText(job.slowed))),
      ...job.rules.flatMap((rule) => fact("An operator", ruleText(rule, job.now))))];
}

function changesView() {
  const rules = h("div", {}), history = h("div", {});
  view.replaceChildren(h("h2", {}, "Rules in force"), rules, h("h3", {}, "History"), history);
  async function refresh() {
    const mine = ++turn, data = await read("api/changes", {});
    if (mine !== turn) return;
    rules.replaceChildren(data.rules.length ? rulesTable(data.rules, data.now) : h("p", { class: "quiet" }, "Every limit is as declared."));
    history.replaceChildren(data.changes.length ? h("div", { class: "scroll" }, h("table", { class: "cards" },
      h("thead", {}, h("tr", {}, ...["When", "By", "Limit", "Change"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...data.changes.map((each) => h("tr", {}, h("td", {}, when(each.at)), cell("By", { class: "data" }, each.by), cell("Limit", { class: "name" }, each.name, each.part === null ? "" : ` (${each.part})`),
        cell("Change", { class: "data wide" }, each.before === null && each.after === null ? `${each.verb}: ${plural(each.forgotten, "stored value", "stored values")} deleted` : `${effectOf(each.before)} → ${effectOf(each.after)}`)))))) : h("p", { class: "quiet" }, "There were no changes."));
  }
  return { refresh };
}
function effectOf(rule) {
  if (rule === null) return "as declared";
  const until = rule.until === null ? "" : ` until ${when(rule.until)}`;
  return { pause: "paused", shadow: "shadow", weight: `weight ${rule.weight}`, scale: `scaled to ${rule.factor}`, set: `${rule.rate}${rule.burst === null ? "" : ` burst ${rule.burst}`}` }[rule.what] + until;
}
function rulesTable(rules, now) {
  return h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ...["Limit", "Rule", "Since", ""].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rules.map((rule) => h("tr", {}, h("td", { class: "name" }, rule.name), cell("Rule", { class: "data wide" }, ruleText(rule, now), rule.refused && h("div", { class: "bad" }, `Workers do not follow: ${rule.refused}`)),
      cell("Since", {}, when(rule.since)), h("td", {}, about.control && h("button", { type: "button", "data-verb": `end ${rule.id}`, onclick: () => change("end", rule) }, "End…")))))));
}

// --- changing things -------------------------------------------------------------------------------------------

const VERBS = { pause: "Pause", set: "Change the rate", scale: "A part of the rate", shadow: "Shadow mode", reset: "Reset", end: "End a rule" };
const LASTS = [["", "until it is ended"], [300, "5 minutes"], [600, "10 minutes"], [1800, "30 minutes"], [3600, "1 hour"], [14400, "4 hours"], [86400, "1 day"]];

/** First the fields, then the effect in the server's words, which the operator confirms. */
function change(verb, row) {
  const fields = {}, field = (name, label, input) => { fields[name] = input; return h("label", {}, label, input); };
  const lasts = () => h("select", {}, ...LASTS.map(([value, text]) => h("option", { value, selected: value === 600 }, text)));
  const title = h("h3", { id: "dialog-title" }, `${VERBS[verb]}: ${row.name}`), effect = h("p", { class: "effect", hidden: true }), wrong = h("p", { class: "bad", role: "alert" });
  const go = h("button", { type: "submit", class: "strong" }, "Continue"), no = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const inputs = h("div", {},
    verb === "set" && field("rate", row.slots ? "Slots" : "Rate, like 50/s or 100/minute", h("input", { required: true })),
    verb === "set" && row.definition.startsWith("token-bucket") && field("burst", "Burst (as declared, if empty)", h("input", { type: "number", min: 1 })),
    verb === "scale" && field("factor", row.slots ? "Part of the slots, like 0.5" : "Part of the rate, like 0.5", h("input", { required: true, type: "number", min: 0.001, max: 1, step: 0.001 })),
    (verb === "pause" || verb === "reset") && row.keyed && field("key", "Key (every key, if empty)", h("input", {})),
    !["end", "reset"].includes(verb) && field("for", "How long", lasts()),
    field("by", "Your name, for the history", h("input", { required: true, maxlength: 100, autocomplete: "name", value: store.get("by") ?? "" })));
  let confirm;
  const form = h("form", { novalidate: true, onsubmit: async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    go.disabled = true;
    const value = (name) => fields[name]?.value.trim() || undefined;
    store.set("by", value("by") ?? "");
    const body = { verb, by: value("by"), confirm, ...(verb === "end" ? { rule: row.id } : { limit: row.id }), key: value("key"), rate: value("rate"),
                   factor: value("factor") && Number(value("factor")), burst: value("burst") && Number(value("burst")), for: value("for") && Number(value("for")) };
    try {
      const answer = await send(body);
      if (answer.done) {
        dialog.replaceChildren(title, h("p", {}, answer.done.length ? "Done. Running workers follow within 2 seconds." : "There was nothing to change."), ...answer.done.map((text) => h("p", { class: "data quiet" }, text)), h("button", { type: "button", class: "strong", id: "close", onclick: () => dialog.close() }, "Close"));
        refreshNow();
        return document.getElementById("close").focus();
      }
      confirm = effect.textContent = answer.confirm;
      effect.hidden = false;
      inputs.hidden = true;
      go.textContent = "Confirm";
    } catch (error) {
      wrong.textContent = error.message;
      if (error.status === 401) askToken();
    }
    go.disabled = false;
  } }, inputs, effect, wrong, h("div", { class: "bar" }, go, no));
  dialog.replaceChildren(title, form);
  dialog.showModal();
}
function askToken() {
  const input = h("input", { type: "password", autocomplete: "off", required: true, id: "token" });
  dialog.replaceChildren(h("h3", { id: "dialog-title" }, "This page needs its token"), h("form", { onsubmit: (event) => {
    event.preventDefault();
    store.set("token", input.value.trim());
    dialog.close();
    refreshNow();
  } }, h("p", { class: "quiet" }, "The server printed it when it was started."), h("label", {}, "Token", input), h("button", { type: "submit", class: "strong" }, "Look")));
  if (!dialog.open) dialog.showModal();
}
function help() {
  const key = (name, text) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, text)];
  dialog.replaceChildren(h("h3", { id: "dialog-title" }, "Keys"), h("dl", { class: "facts" }, ...key("1 2 3", "limits, job, rules and history"), ...key("/", "filter or search"), ...key("j k", "next or previous limit; Enter opens it"),
    ...key("Esc", "back to all limits"), ...key("space", "hold the updates, or go on"), ...key("?", "this list")), h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

// --- the frame -------------------------------------------------------------------------------------------------

function head(data) {
  const kinds = Object.entries(data.frameworks).map(([kind, number]) => `${number} ${kind}`).join(", ");
  document.getElementById("head").textContent = `${clock(data.now)} · ${plural(data.processes, "process", "processes")}${kinds ? ` (${kinds})` : ""}${data.latency === null ? "" : ` · store ${(data.latency * 1000).toFixed(1)} ms`}`;
}
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
function route() {
  const [, name, rest] = /^#\/(\w*)\/?(.*)$/.exec(location.hash) ?? ["", "", ""], id = decoded(rest ?? "");
  const current = name === "limit" ? "limits" : name || "limits";
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.dataset.view === current);
  turn += 1;
  shown = name === "limit" ? limitView(id) : name === "job" ? jobView(id) : name === "changes" ? changesView() : limitsView();
  refreshNow();
}
let timer;
async function refreshNow() {
  clearTimeout(timer);
  const alert = document.getElementById("alert");
  try {
    await shown.refresh();
    alert.hidden = true;
    document.body.dataset.ready = "true";
  } catch (error) {
    if (error.status === 401) { if (!dialog.open) askToken(); } else {
      alert.textContent = `${error.message} Trying again.`;
      alert.hidden = false;
    }
  }
  clearTimeout(timer);
  timer = setTimeout(() => (held || document.hidden ? later() : refreshNow()), EVERY_MS);
}
function later() { clearTimeout(timer); timer = setTimeout(() => (held || document.hidden ? later() : refreshNow()), EVERY_MS); }
function hold() {
  held = !held;
  const button = document.getElementById("hold");
  button.setAttribute("aria-pressed", String(held));
  button.textContent = held ? "Held" : "Hold";
  if (!held) refreshNow();
}
function theme(next) {
  let chosen = "auto";
  try { chosen = localStorage.getItem("theme") ?? "auto"; } catch { /* private mode */ }
  if (next) {
    chosen = { auto: "dark", dark: "light", light: "auto" }[chosen] ?? "auto";
    try { localStorage.setItem("theme", chosen); } catch { /* private mode */ }
  }
  document.documentElement.dataset.theme = chosen;
  document.getElementById("theme").textContent = { auto: "Auto", dark: "Dark", light: "Light" }[chosen];
}
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape") { if (typing) event.target.blur(); else location.hash = "#/"; return; }
  if (typing) return;
  const go = { 1: "#/", 2: "#/job/", 3: "#/changes" }[event.key];
  if (go) location.hash = go;
  else if (event.key === "/") { event.preventDefault(); document.querySelector("#filter, #search, #job")?.focus(); }
  else if (event.key === "?") help();
  else if (event.key === " " && event.target === document.body) { event.preventDefault(); hold(); }
  else if (event.key === "j" || event.key === "k") {
    const links = [...view.querySelectorAll("tbody a")], at = links.indexOf(document.activeElement);
    links[event.key === "j" ? Math.min(links.length - 1, at + 1) : Math.max(0, at - 1)]?.focus();
  }
}
async function begin() {
  const brought = /^#token=(.+)$/.exec(location.hash);  // a fragment is never sent to a server
  if (brought) {
    store.set("token", decoded(brought[1]));
    history.replaceState(null, "", location.pathname);
  }
  theme(false);
  document.getElementById("theme").addEventListener("click", () => theme(true));
  document.getElementById("hold").addEventListener("click", hold);
  document.getElementById("help").addEventListener("click", help);
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); view.focus(); });
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !held) refreshNow(); });
  addEventListener("hashchange", route);
  try { about = await ask("api/about"); } catch { /* the first request for data says what is wrong */ }
  route();
}
begin();
