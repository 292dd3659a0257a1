"use strict";
// One page, without a build step. Text from the store is never inserted as HTML, which the server's CSP enforces.

const EVERY_MS = 2000;
// The fields of a bar, as in bars_data in _data.py. A field is null if it is not known.
const AT = 0, UNITS = 1, DENIED = 2, PAUSED = 3, WAIT = 4, WAITING = 5, RATE = 6, ARRIVED = 7, GRANTED = 8, PARTNER_429S = 9;
const RANGES = [["15m", "15 min", 300], ["1h", "1 h", 900], ["24h", "24 h", 14400], ["30d", "30 d", 432000]];
const view = document.getElementById("view"), dialog = document.getElementById("dialog");
const store = { get: (name) => { try { return sessionStorage.getItem(name); } catch { return null; } },
                set: (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* private mode */ } } };
let about = { control: false, token: false, keys: false };
let shown = { refresh: async () => {} }, turn = 0, held = false;

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
/** A table with titles, each [text, class]. On a phone, a row of a table with the style "cards" is shown as a card. */
const table = (heads, rows, style = "cards", body = h("tbody", {})) => {
  body.replaceChildren(...rows);
  const titles = heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
  return h("div", { class: "scroll" }, h("table", { class: style }, h("thead", {}, h("tr", {}, ...titles)), body));
};

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
const UNKNOWN = "not known";
const count = (number) => number === null ? UNKNOWN : Number(number).toLocaleString("en", { maximumFractionDigits: 1 });
// Times are in UTC, as in all tools of throttlekit.
const when = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
const clock = (seconds) => when(seconds).slice(11);
const waiting = (row) => !row.waiting_jobs ? "" : row.waiting_jobs === row.waiting_units ? `about ${count(row.waiting_jobs)}`
  : `about ${count(row.waiting_jobs)} (${count(row.waiting_units)} units)`;
const minute = (row, name) => row.last_minute === null ? null : row.last_minute[name];
const percent = (row) => minute(row, "rate_used_ratio") === null ? null : `${Math.round(row.last_minute.rate_used_ratio * 100)} %`;
const reasons = (denied) => Object.entries(denied).filter(([, number]) => number).map(([why, number]) => `${why} ${count(number)}`).join(", ");

// --- talking to the server -------------------------------------------------------------------------------------

async function request(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (store.get("token")) headers.Authorization = `Bearer ${store.get("token")}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  const data = await response.json();
  if (response.ok) return data;
  throw Object.assign(new Error(data.error ?? `status ${response.status}`), { status: response.status });
}
const read = (path, query) => request(`${path}?${new URLSearchParams(query)}`);
const send = (form) => request("api/control", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(form) });

// --- charts ----------------------------------------------------------------------------------------------------

const short = (seconds) => seconds % 86400 === 0 && seconds ? `${seconds / 86400} d` : seconds % 3600 === 0 && seconds ? `${seconds / 3600} h` : seconds % 60 === 0 && seconds ? `${seconds / 60} min` : `${seconds} s`;
const compact = (number) => Number(number).toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
/** The values at which a vertical axis has lines: at most four, all round numbers. */
function ticks(top, isTime) {
  const power = 10 ** Math.floor(Math.log10(top / 3));
  const rounds = isTime ? [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800, 1209600] : [1, 2, 5, 10].map((each) => Math.max(1, each * power));
  const step = rounds.find((each) => top / each <= 3) ?? rounds.at(-1);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, at) => at * step);
}
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const day = (seconds) => `${new Date(seconds * 1000).getUTCDate()} ${MONTHS[new Date(seconds * 1000).getUTCMonth()]}`;
const span = (at, bar) => `${bar >= 3600 ? `${day(at)}, ` : ""}${clock(at).slice(0, 5)}–${clock(at + bar).slice(0, 5)} UTC`;

/** A chart of bars. `parts`: [class, field, name] from the bottom up; `lines`: [class, field, name]. A bar whose first field is null is hatched. */
function chart(data, { parts, lines = [], label, unit = count, isTime = false, marked = false, say = (row, field) => unit(row[field]) }) {
  const { bars, bar_seconds: bar } = data.range, [width, height, left, right, top, bottom] = [data.width, 170, 46, 8, 12, 20];
  const each = (width - left - right) / bars.length, gap = each > 4 ? 1 : each * .1, low = height - bottom, x = (at) => left + at * each;
  const isKnown = (row) => row[parts[0][1]] !== null, sum = (row) => isKnown(row) ? parts.reduce((all, [, field]) => all + Math.max(0, row[field]), 0) : 0;
  const drawn = lines.filter(([, field]) => bars.some((row) => row[field])), highest = Math.max(...bars.map(sum), ...drawn.flatMap(([, field]) => bars.map((row) => row[field] ?? 0)));
  const full = highest * 1.04 || 1, y = (value) => low - value / full * (low - top), last = bars.at(-1);
  const paths = parts.flatMap(([style, field], index) => [[bars.slice(0, -1), 0, style], [[last], bars.length - 1, `${style} running`]].map(([some, from, name]) => svg("path", { class: name, d: some.map((row, at) => {
    const below = parts.slice(0, index).reduce((all, [, other]) => all + Math.max(0, row[other]), 0), high = Math.max(0, row[field]);
    return isKnown(row) && high ? `M${x(from + at) + gap / 2} ${y(below)}h${each - gap}V${y(below + high)}h${gap - each}z` : "";
  }).join("") })));
  const value = (row, field) => row && isKnown(row) ? row[field] : null;
  const line = ([style, field]) => svg("path", { class: style, d: bars.map((row, at) => value(row, field) === null ? "" : `${value(bars[at - 1], field) === null ? `M${x(at)} ` : "V"}${y(row[field])}h${each}`).join("") });
  const every = RANGES.find(([name]) => name === data.range.name)[2];
  const described = (row) => [span(row[AT], bar) + (row === last ? ", still running" : ""),
    ...(isKnown(row) ? [...parts, ...lines].map(([, field, name]) => `${name}: ${row[field] === null ? UNKNOWN : say(row, field)}`) : [UNKNOWN]),
    ...(row[PARTNER_429S] && marked ? [`429s from the partner: ${count(row[PARTNER_429S])}`] : []), ...data.marks.filter((mark) => mark.at >= row[AT] && mark.at < row[AT] + bar).map((mark) => mark.text)];
  const hits = bars.map((row, at) => svg("rect", { x: x(at), width: each, y: top, height: low - top, class: "hit", onpointerenter: (event) => tip(event, described(row)), onpointermove: (event) => tip(event, described(row)), onpointerleave: () => tip(null) }));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart", "aria-label": `${label}, last ${RANGES.find(([name]) => name === data.range.name)[1]}: highest ${unit(Math.max(...bars.map(sum)))}, now ${isKnown(last) ? unit(sum(last)) : UNKNOWN}` },
    ...ticks(full, isTime).map((value) => svg("g", { "aria-hidden": "true" }, svg("path", { d: `M${left} ${y(value)}H${width - right}`, class: "grid" }), svg("text", { x: left - 6, y: y(value) + 4, class: "tick end" }, isTime ? short(value) : compact(value)))),
    ...bars.map((row, at) => row[AT] % every === 0 && svg("text", { x: Math.max(left + 14, Math.min(width - 20, x(at))), y: height - 4, class: "tick", "aria-hidden": "true" }, data.range.name === "30d" ? day(row[AT]) : clock(row[AT]).slice(0, 5))),
    ...bars.map((row, at) => !isKnown(row) && svg("rect", { x: x(at), width: each, y: top, height: low - top, fill: "url(#unknown)", class: "unknown" })),
    ...paths, ...drawn.map(line),
    ...data.marks.filter((mark) => mark.at >= bars[0][AT]).map((mark) => svg("path", { d: `M${x((mark.at - bars[0][AT]) / bar)} ${top - 8}V${low}`, class: "mark" })),
    ...(marked ? bars.map((row, at) => row[PARTNER_429S] ? svg("circle", { cx: x(at + .5), cy: top - 6, r: 3.5, class: "f-short partner-429" }) : null) : []), ...hits);
  const legend = [...parts, ...drawn].map(([style, , name]) => h("span", { class: "key" }, svg("svg", { viewBox: "0 0 14 8", class: "swatch", "aria-hidden": "true" }, drawn.some(([other]) => other === style) ? svg("path", { d: "M0 4H14", class: style }) : svg("rect", { width: 14, height: 8, class: style })), name));
  const sign = (shape, name) => h("span", { class: "key" }, svg("svg", { viewBox: "0 0 14 8", class: "swatch", "aria-hidden": "true" }, shape), name);
  if (!bars.every(isKnown)) legend.push(sign(svg("rect", { width: 14, height: 8, fill: "url(#unknown)" }), UNKNOWN));
  if (marked && bars.some((row) => row[PARTNER_429S])) legend.push(sign(svg("circle", { cx: 7, cy: 4, r: 3.5, class: "f-short" }), "429 from the partner"));
  if (marked && data.marks.length) legend.push(sign(svg("path", { d: "M7 0V8", class: "mark" }), "changed by an operator"));
  return h("figure", {}, h("figcaption", {}, h("span", {}, label), h("span", { class: "quiet" }, `highest ${unit(Math.max(...bars.map(sum)))}`)), picture, h("div", { class: "legend" }, ...legend));
}
/** Show the text of a bar beside the pointer. The text stays there while the chart is redrawn. */
function tip(event, lines) {
  const box = document.getElementById("tip");
  box.hidden = event === null;
  if (event === null) return;
  box.replaceChildren(...lines.map((text, at) => h(at ? "div" : "b", { class: "data" }, text)));
  box.style.left = `${Math.max(4, Math.min(innerWidth - box.offsetWidth - 4, event.clientX + 12))}px`;
  box.style.top = `${Math.max(4, event.clientY - box.offsetHeight - 12)}px`;
}
const perBar = (bar) => bar === 60 ? "per minute" : `per ${short(bar)}`;
/** The last 15 minutes of a limit in its row: one bar per minute, and the rate as a dashed line. */
function sparkline(row) {
  const [width, height, each] = [180, 36, 180 / row.bars.length], lines = row.bars.map((bar) => bar[UNITS] === null ? 0 : bar[RATE] ?? 0);
  const top = Math.max(1, ...row.bars.map((bar) => bar[UNITS] ?? 0), ...lines), y = (value) => height - value / top * (height - 4), last = row.bars.at(-1);
  const title = `Units admitted per minute, last 15 minutes: highest ${count(Math.max(0, ...row.bars.map((bar) => bar[UNITS] ?? 0)))}, now ${count(last[UNITS])}. Dashed: what the rate allows. Hatched: ${UNKNOWN}.`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", class: "spark", "aria-label": title }, svg("title", {}, title),
    ...row.bars.map((bar, at) => bar[UNITS] === null && svg("rect", { x: at * each, width: each, y: 0, height, fill: "url(#unknown)", class: "unknown" })),
    ...row.bars.map((bar, at) => bar[UNITS] > 0 && svg("path", { d: `M${at * each + .8} ${height}h${each - 1.6}V${y(bar[UNITS])}h${1.6 - each}z`, class: bar === last ? "f-bar running" : "f-bar" })),
    svg("path", { class: "rate", d: lines.map((value, at) => value ? `${lines[at - 1] ? "V" : `M${at * each} `}${y(value)}h${each}` : "").join("") }));
}
/** How tenants divided the units of a limit. A tenant keeps its colour for as long as it is shown. */
const colours = new Map();
function sharesChart(row, data, per) {
  const { tenants, bars } = data.range.shares, own = colours.get(row.id) ?? new Map(), known = bars.filter((bar) => bar[1] !== null);
  for (const name of own.keys()) if (!tenants.includes(name)) own.delete(name);
  for (const name of tenants) if (!own.has(name)) own.set(name, [0, 1, 2, 3, 4, 5].find((number) => ![...own.values()].includes(number)));
  colours.set(row.id, own);
  const parts = tenants.map((name, at) => [`f-tenant-${own.get(name)}`, at + 1, name || "(no name)"]), last = tenants.length + 1;
  if (!tenants.length || known.some((bar) => bar[last])) parts.push(["f-others", last, "all others"]);
  const total = (bar) => bar.slice(1).reduce((all, units) => all + units, 0);
  return chart({ ...data, range: { ...data.range, bars } }, { label: `Units of each tenant, ${per}`, parts, say: (bar, field) => `${count(bar[field])} (${Math.round(bar[field] / (total(bar) || 1) * 100)} %)` });
}
function charts(row, data) {
  const per = perBar(data.range.bar_seconds), available = document.documentElement.clientWidth - (innerWidth > 760 ? 40 : 26), columns = available > 900 ? 2 : 1;
  data.width = Math.floor(Math.min(1360, available) / columns - 44);
  data.marks = data.changes.map((each) => ({ at: each.at, text: `${each.by}: ${each.text}` }));
  const show = (options) => chart(data, options);
  const chosen = (name) => () => { store.set("range", name); refreshNow(); };
  return h("section", {}, h("div", { class: "bar ranges", role: "group", "aria-label": "Period of the charts" },
    ...RANGES.map(([name, text]) => h("button", { type: "button", "data-range": name, "aria-pressed": String(name === data.range.name), onclick: chosen(name) }, text))),
    h("div", { class: "charts" },
      show({ label: `${row.is_concurrency ? "Slots granted" : "Units admitted"} ${per}`, marked: true, parts: [["f-bar", UNITS, "admitted"]], lines: [["rate", RATE, "rate"]] }),
      data.range.shares ? sharesChart(row, data, per) : null,
      show({ label: "Waiting jobs", parts: [["f-bar", WAITING, "maximum"]] }),
      show({ label: `Jobs: arrived and granted, ${per}`, parts: [["f-calm", GRANTED, "granted"]], lines: [["arrive", ARRIVED, "arrived"]] }),
      show({ label: "Longest wait", unit: duration, isTime: true, parts: [["f-bar", WAIT, "waited"]] }),
      data.range.bars.some((bar) => bar[DENIED] || bar[PAUSED]) ? show({ label: `Denials ${per}`, parts: [["f-calm", DENIED, "denied"], ["f-paused", PAUSED, "paused"]] }) : null),
    data.marks.length ? h("ul", { class: "quiet marks" }, ...data.changes.map((each, at) => h("li", { class: "data" }, `${when(each.at)} · ${data.marks[at].text}`))) : null);
}
/** The tile with the time until no job waits: estimated from the last minute if possible, otherwise from the rate. */
function clears(row, now) {
  const seen = row.outlook;
  if (!row.waiting_jobs) return tile("Clears in", "–", "no job waits");
  if (seen?.trend === "grows") return tile("Clears in", h("span", { class: "short" }, "not at this rate"), `${count(seen.arrived_jobs)} arrived in the last minute, ${count(seen.granted_jobs)} granted`);
  if (seen?.clears_in_seconds) return tile("Clears in", duration(seen.clears_in_seconds), `empty at ${clock(now + seen.clears_in_seconds).slice(0, 5)} UTC at this rate`);
  return tile("Clears in", duration(row.last_starts_in_seconds) || "–", "if no other job arrives");
}
function use(row) {
  if (row.used === null) return "";
  const part = Math.min(1, row.used / (row.capacity || 1));
  return [h("span", {}, `${count(row.used)}/${count(row.capacity)}`),
    svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", class: "use", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 6, class: "fill" }), svg("rect", { width: part * 100, height: 6, class: "f-bar" }))];
}

// --- the views -------------------------------------------------------------------------------------------------

const tile = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, " ", note ? h("small", {}, note) : null));
const state = { order: "wait", filter: "" };

function limitsView() {
  const tiles = h("dl", { class: "tiles summary" }), body = h("tbody", {}), note = h("p", { class: "quiet", "aria-live": "polite" });
  const filter = h("input", { type: "search", id: "filter", placeholder: "Filter by name  /", "aria-label": "Filter limits by name", value: state.filter,
                              oninput: () => { state.filter = filter.value; refresh(); } });
  const order = h("select", { onchange: () => { state.order = order.value; refresh(); } },
    ...[["wait", "longest waits"], ["use", "fullest"], ["denied", "most denied"], ["name", "name"]].map(([value, text]) => h("option", { value, selected: value === state.order }, text)));
  const heads = [["Limit"], ["Now", "n"], ["Last 15 minutes"], ["Last minute", "n"], ["Waiting", "n"], ["Clears in", "n"], ["Oldest wait", "n"], ["Denied in the last minute"]];
  view.replaceChildren(h("h2", { class: "skip" }, "Limits"), tiles,
    h("div", { class: "bar" }, filter, h("label", {}, "Sort by ", order)),
    table(heads, [], "cards", body), note);
  async function refresh() {
    const mine = ++turn, asked = { ...state };
    const data = await read("api/limits", { order: asked.order, filter: asked.filter });
    if (mine !== turn) return;
    head(data);
    tiles.replaceChildren(tile("Waiting", data.waiting_jobs ? `about ${count(data.waiting_jobs)}` : "none", "on all waitlists; a job may be on several"), tile("Oldest wait", duration(data.oldest_wait_seconds || null) || "none", "in the last minute"),
      tile("Denials", count(data.denials), "in the last minute"), tile("429s", count(data.downstream_429), "from the partner, in the last 15 minutes"), tile("Paused limits", count(data.paused_limits), data.slowed_limits ? `${count(data.slowed_limits)} slowed down` : null));
    const focused = document.activeElement?.dataset?.id;
    body.replaceChildren(...data.limits.map(limitRow));
    if (focused) body.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    note.textContent = data.of === 0 ? (asked.filter ? "No limit has this in its name." : "No worker has used a limit with this store in the last hour.")
      : data.of > data.limits.length ? `${data.limits.length} of ${data.of} limits are shown: filter by name to see others.` : "";
  }
  return { refresh };
}
function tags(row) {
  return [row.rules.some((rule) => rule.what === "pause" && rule.part === null) && h("span", { class: "tag paused" }, "paused by an operator"),
    row.paused_for_seconds !== null && h("span", { class: "tag paused" }, `paused for ${duration(row.paused_for_seconds)}`),
    row.slowed !== null && h("span", { class: "tag short" }, row.has_keys ? "a key is slowed" : "slowed"),
    row.used !== null && row.used >= row.capacity && h("span", { class: "tag quiet" }, row.has_keys ? "a key is full" : "full"),
    row.outlook?.limit_has_room && h("span", { class: "tag short", title: row.outlook.text }, "the limit has room"), row.outlook?.trend === "grows" && h("span", { class: "tag short", title: row.outlook.text }, "grows"),
    row.downstream_429 > 0 && h("span", { class: "tag short", title: "429 responses that paused it, in the last 15 minutes" }, `${plural(row.downstream_429, "429", "429s")}`),
    row.is_idle && h("span", { class: "tag quiet" }, "not used")];
}
const warnings = (row) => row.warnings.map((text) => h("div", { class: "bad data" }, text));
const clearsText = (row) => !row.waiting_jobs ? "" : row.outlook?.trend === "grows" ? h("span", { class: "short" }, "not at this rate") : duration(row.outlook?.clears_in_seconds ?? row.last_starts_in_seconds);
function limitRow(row) {
  return h("tr", { class: row.is_idle ? "idle" : null },
    h("td", {}, h("a", { href: `#/limit/${encodeURIComponent(row.id)}`, "data-id": row.id, class: "name" }, row.limit), " ", ...tags(row),
      h("div", { class: "quiet data" }, row.definition), row.slowed !== null && h("div", { class: "quiet" }, `${row.has_keys ? "the slowest key: " : ""}slowed down ${row.slowed.text}`),
      ...row.rules.map((rule) => h("div", { class: "paused data" }, rule.text)), ...warnings(row)),
    cell(row.has_keys ? "Now, fullest key" : "Now", { class: "n" }, use(row)),
    cell("Last 15 minutes", { class: "wide" }, sparkline(row)),
    cell("Last minute", { class: "n" }, count(minute(row, "units")), percent(row) && h("div", { class: "quiet" }, percent(row))),
    cell("Waiting", { class: "n" }, waiting(row)),
    cell("Clears in", { class: "n" }, clearsText(row)),
    cell("Oldest wait", { class: "n" }, duration(row.oldest_wait_seconds || null)),
    cell("Denied", { class: "quiet wide" }, reasons(minute(row, "denied") ?? {})));
}

function limitView(id) {
  const top = h("section", {}), keys = keysPane(id);
  view.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← All limits")), top, keys.element);
  async function refresh() {
    const mine = ++turn;
    const data = await read("api/limit", { id, range: RANGES.some(([name]) => name === store.get("range")) ? store.get("range") : "15m" });
    if (mine !== turn) return;
    const row = data, { verb: pressed, range } = document.activeElement?.dataset ?? {};
    keys.show(row);
    const act = (verb, text) => h("button", { type: "button", "data-verb": verb, onclick: () => change(verb, row) }, text);
    top.replaceChildren(
      h("h2", {}, h("span", { class: "data" }, row.limit), " ", ...tags(row)), h("p", { class: "quiet data" }, row.definition),
      row.slowed === null ? "" : h("p", { class: "short" }, `${row.has_keys ? "The slowest key is " : "It is "}slowed down ${row.slowed.text}.`),
      row.outlook?.limit_has_room ? h("p", { class: "short", id: "room" }, "Jobs wait although this limit has room: workers are the bottleneck, or another limit of these jobs denies them.") : "",
      h("dl", { class: "tiles" },
        tile(row.has_keys ? "Now, fullest key" : "Now", row.used === null ? "–" : `${count(row.used)} / ${count(row.capacity)}`), tile("Last minute", `${count(minute(row, "units"))} ${row.is_concurrency ? "slots" : "units"}`, percent(row) && `${percent(row)} of the rate`),
        tile("Waiting", waiting(row) || "none", row.has_keys ? "of the keys below" : null), clears(row, data.now), tile("Oldest wait", duration(row.oldest_wait_seconds || null) || "none", "in the last minute"),
        tile("Denials", count(minute(row, "denials")), reasons(minute(row, "denied") ?? {})), tile("429s", count(row.downstream_429), "from the partner, in the last 15 minutes"),
        row.mean_hold_seconds !== null && tile("Slot held for", duration(row.mean_hold_seconds), "on average"), row.oldest_hold_seconds !== null && tile("Oldest holder", duration(row.oldest_hold_seconds))),
      row.rules.length ? h("div", {}, h("h3", {}, "Rules in force"), rulesTable(row.rules)) : "", ...warnings(row),
      about.control ? h("div", { class: "bar" }, act("pause", "Pause…"), act("set", "Change the rate…"), act("scale", "Scale…"), act("shadow", "Shadow mode…"), act("reset", "Reset…")) : "",
      charts(row, data),
      row.has_digests ? h("p", { class: "quiet", id: "digests" }, "Keys and tenants are shown as digests. To see their names, start this server with --show-keys, or mount the page with show_keys=True; or, if its keys are not secret, declare the limit with show_key=True.") : "",
      row.has_keys ? h("div", {}, h("h3", {}, "Busiest keys"), keyTable(row.keys)) : "",
      data.tenants.length ? h("div", {}, h("h3", {}, "Tenants, last minute"), tenantTable(data.tenants)) : "",
      ...data.waiting.filter((each) => each.jobs.length).map((each) => h("div", {}, h("h3", {}, "First waiting jobs", each.key && h("span", { class: "data" }, ` of ${each.key}`)), waitingTable(each.jobs))),
      ...data.holders.filter((each) => each.holders.length).map((each) => h("div", {}, h("h3", {}, "Holders", each.key && h("span", { class: "data" }, ` of ${each.key}`)), holderTable(each.holders))));
    if (range) top.querySelector(`[data-range="${CSS.escape(range)}"]`)?.focus({ preventScroll: true });
    if (pressed) top.querySelector(`[data-verb="${CSS.escape(pressed)}"]`)?.focus({ preventScroll: true });
  }
  return { refresh };
}
function tenantTable(tenants) {
  const heads = [["Tenant"], ["Weight", "n"], ["Units", "n"], ["Share", "n"], ["Longest wait", "n"]];
  return table(heads, tenants.map((each) => h("tr", {}, h("td", {}, h("span", { class: "name" }, each.tenant || "(no name)")),
    cell("Weight", { class: "n" }, `${each.weight}`), cell("Units", { class: "n" }, count(each.units)), cell("Share", { class: "n" }, `${Math.round(each.units_ratio * 100)} %`),
    cell("Longest wait", { class: "n" }, duration(each.longest_wait_seconds || null) || "none"))));
}
function waitingTable(jobs) {
  return table([["Job"], ["Deferrals", "n"], ["Waits for", "n"]], jobs.map((each) => h("tr", {}, h("td", {}, h("a", { href: `#/job/${encodeURIComponent(each.job)}`, class: "data waits" }, each.job)),
    h("td", { class: "n" }, count(each.deferrals)), h("td", { class: "n" }, duration(each.waits_for_seconds)))), null);
}
function holderTable(holders) {
  return table([["Job"], ["Slots", "n"], ["Held for", "n"]], holders.map((each) => h("tr", {}, h("td", { class: "data" }, each.job || "(not a job)"),
    h("td", { class: "n" }, String(each.slots)), h("td", { class: "n" }, duration(each.held_for_seconds)))), null);
}
function keyTable(keys) {
  if (!keys.length) return h("p", { class: "quiet" }, "None.");
  const heads = [["Key"], ["Now", "n"], ["Waiting", "n"], ["Clears in", "n"], ["Units, last minute", "n"], ["Denials, last minute", "n"]];
  return table(heads, keys.map((key) => h("tr", {}, h("td", {}, h("span", { class: "name" }, key.key || "(empty)"), key.paused_for_seconds !== null && h("span", { class: "tag paused" }, `paused for ${duration(key.paused_for_seconds)}`), key.slowed !== null && h("span", { class: "tag short" }, `slowed down ${key.slowed.text}`)),
    cell("Now", { class: "n" }, use(key)), cell("Waiting", { class: "n" }, waiting(key)), cell("Clears in", { class: "n" }, duration(key.last_starts_in_seconds)),
    cell("Units, last minute", { class: "n" }, count(minute(key, "units"))), cell("Denials, last minute", { class: "n" }, count(minute(key, "denials"))))));
}
/** All keys of a limit, in pages. A search sends requests of a bounded size until a page is full. */
function keysPane(id) {
  const element = h("section", { hidden: true }), list = h("div", {}), note = h("p", { class: "quiet", "aria-live": "polite" });
  const search = h("input", { type: "search", id: "search", "aria-label": "Search a key", size: 34 });
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
        note.textContent = `Searched ${count(Math.min(looked, data.of))} of the ${count(data.of)} keys of all limits…`;
      } while (cursor && found.size < 50);
    } catch (error) { if (mine === run) note.textContent = error.message; return; }
    cursors.push(cursor);
    list.replaceChildren(keyTable([...found.values()]));
    next.disabled = !cursor;
    back.disabled = cursors.length < 2;
    note.textContent = `Page ${cursors.length}, ${found.size} keys${cursor ? "" : ": the last page"}. The store keeps the keys of the last hour, at most 100,000 for the whole fleet.`;
  }
  return { element, show: (row) => { search.placeholder = row.has_digests ? "A whole key, or part of its digest  /" : "Part of a key  /"; element.hidden = !row.has_keys; if (row.has_keys && !begun) { begun = true; load(""); } } };
}

function jobView(id) {
  const answer = h("div", { "aria-live": "polite" });
  const input = h("input", { type: "search", id: "job", "aria-label": "Job id", placeholder: "Job id  /", value: id, size: 40 });
  view.replaceChildren(h("h2", {}, "Why does this job wait?"), h("p", { class: "quiet" }, "The framework's own id: Dramatiq's message_id, RQ's job id, Celery's task id. Every job that waits for a limit is found. For an hour, the store keeps the outcomes of the last 10,000 that had waited."),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); location.hash = `#/job/${encodeURIComponent(input.value.trim())}`; } }, input, h("button", { type: "submit", class: "strong" }, "Explain")), answer);
  async function refresh() {
    if (!id) return input.focus();
    const mine = ++turn, job = await read("api/job", { id });
    if (mine === turn) answer.replaceChildren(...explained(id, job));
  }
  return { refresh };
}
function explained(id, job) {
  return [h("p", {}, "Job ", h("b", { class: "data" }, id), " ", h("span", { class: "data" }, job.summary)),
    h("dl", { class: "facts" }, ...job.facts.flatMap(([name, text]) => [h("dt", {}, name[0].toUpperCase() + name.slice(1)), h("dd", { class: "data" }, text)])),
    job.id && h("p", {}, h("a", { href: `#/limit/${encodeURIComponent(job.id)}` }, "Show this limit"))].filter(Boolean);
}

function changesView() {
  const rules = h("div", {}), history = h("div", {});
  view.replaceChildren(h("h2", {}, "Rules in force"), rules, h("h3", {}, "History"), history);
  async function refresh() {
    const mine = ++turn, data = await read("api/changes", {});
    if (mine !== turn) return;
    rules.replaceChildren(data.rules.length ? rulesTable(data.rules) : h("p", { class: "quiet" }, "Every limit is as declared."));
    history.replaceChildren(data.changes.length ? table([["When"], ["By"], ["Limit"], ["Change"]], data.changes.map((each) => h("tr", {}, h("td", {}, when(each.at)), cell("By", { class: "data" }, each.by),
      cell("Limit", { class: "name" }, each.limit, each.part === null ? "" : ` (${each.part})`), cell("Change", { class: "data wide" }, each.text)))) : h("p", { class: "quiet" }, "There were no changes."));
  }
  return { refresh };
}
function rulesTable(rules) {
  return table([["Limit"], ["Rule"], ["Since"], [""]], rules.map((rule) => h("tr", {}, h("td", { class: "name" }, rule.limit), cell("Rule", { class: "data wide" }, rule.text),
    cell("Since", {}, when(rule.since)), h("td", {}, about.control && h("button", { type: "button", "data-verb": `end ${rule.id}`, onclick: () => change("end", rule) }, "End…")))));
}

// --- changing things -------------------------------------------------------------------------------------------

const VERBS = { pause: "Pause", set: "Change the rate", scale: "Scale the rate", shadow: "Shadow mode", reset: "Reset", end: "End a rule" };
const LASTS = [["", "until it is ended"], [300, "5 minutes"], [600, "10 minutes"], [1800, "30 minutes"], [3600, "1 hour"], [14400, "4 hours"], [86400, "1 day"]];

/** The rate or the slots in a definition, as the server reads them: "5/10 s" is "5/10s". */
const rateIn = (definition) => (/^\S+ (\d+(\/[\d.]+ s|\/\w+)?)/.exec(definition)?.[1] ?? "").replace(" ", "");
/** Show the fields of a change, and then the server's description of its effect, which the operator confirms. */
function change(verb, row) {
  const fields = {}, field = (name, label, input) => { fields[name] = input; return h("label", {}, label, input); };
  const lasts = () => h("select", {}, ...LASTS.map(([value, text]) => h("option", { value, selected: value === 600 }, text)));
  const title = h("h3", { id: "dialog-title" }, `${VERBS[verb]}: ${row.limit}`), where = h("p", { class: "quiet data" }, `Store: ${about.store ?? UNKNOWN}`), effect = h("p", { class: "effect", hidden: true }), wrong = h("p", { class: "bad", role: "alert" });
  const go = h("button", { type: "submit", class: "strong" }, "Continue"), no = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const present = ["set", "scale"].includes(verb) && h("p", { class: "quiet data", id: "present" }, `Now: ${row.definition}`);
  const inputs = h("div", {}, present,
    verb === "set" && field("rate", row.is_concurrency ? "Slots" : "Rate, like 50/s or 100/minute", h("input", { required: true, value: rateIn(row.definition) })),
    verb === "set" && row.definition.startsWith("token-bucket") && field("burst", "Burst (empty: as declared)", h("input", { type: "number", min: 1 })),
    verb === "scale" && field("factor", "Factor, like 0.5", h("input", { required: true, type: "number", min: 0.001, max: 1, step: 0.001 })),
    (verb === "pause" || verb === "reset") && row.has_keys && field("key", "Key (empty: every key)", h("input", {})),
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
        where.hidden = false;
        dialog.replaceChildren(title, where, h("p", {}, answer.done.length ? "Done. Running workers apply it within 2 seconds." : "There was nothing to change."), ...answer.done.map((text) => h("p", { class: "data quiet" }, text)), h("button", { type: "button", class: "strong", id: "close", onclick: () => dialog.close() }, "Close"));
        refreshNow();
        return document.getElementById("close").focus();
      }
      confirm = effect.textContent = answer.confirm;
      effect.hidden = false;
      where.hidden = inputs.hidden = true;
      go.textContent = "Confirm";
    } catch (error) {
      wrong.textContent = error.message;
      if (error.status === 401) askToken();
    }
    go.disabled = false;
  } }, inputs, effect, wrong, h("div", { class: "bar" }, go, no));
  dialog.replaceChildren(title, where, form);
  dialog.showModal();
}
function askToken() {
  const input = h("input", { type: "password", autocomplete: "off", required: true, id: "token" });
  dialog.replaceChildren(h("h3", { id: "dialog-title" }, "This page needs its token"), h("form", { onsubmit: (event) => {
    event.preventDefault();
    store.set("token", input.value.trim());
    dialog.close();
    refreshNow();
  } }, h("p", { class: "quiet" }, "The server printed it at its start."), h("label", {}, "Token", input), h("button", { type: "submit", class: "strong" }, "Continue")));
  if (!dialog.open) dialog.showModal();
}
function help() {
  const key = (name, text) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, text)];
  dialog.replaceChildren(h("h3", { id: "dialog-title" }, "Keys"), h("dl", { class: "facts" }, ...key("1 2 3", "limits, job, rules and history"), ...key("/", "filter or search"), ...key("j k", "next or previous limit; Enter opens it"),
    ...key("Esc", "back to all limits"), ...key("space", "freeze or resume the updates"), ...key("?", "this list")), h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

// --- the frame -------------------------------------------------------------------------------------------------

function head(data) {
  const kinds = Object.entries(data.frameworks).filter(([kind]) => kind !== "-").map(([kind, number]) => `${number} ${kind}`).join(", ");
  const processes = Object.values(data.frameworks).reduce((all, number) => all + number, 0);
  document.getElementById("head").textContent = `${clock(data.now)} · ${plural(processes, "process", "processes")}${kinds ? ` (${kinds})` : ""}${data.store_latency_seconds === null ? "" : ` · store ${(data.store_latency_seconds * 1000).toFixed(1)} ms`}`;
}
/** Read the server's permissions and the name of its store, and show the name on the page and in the tab's title. */
async function learn() {
  about = await request("api/about");
  document.getElementById("store").textContent = about.store ?? "";
  document.title = about.store ? `${about.store} · throttlekit` : "throttlekit";
}
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
function route() {
  const [, name, rest] = /^#\/(\w*)\/?(.*)$/.exec(location.hash) ?? ["", "", ""], id = decoded(rest ?? "");
  const current = name === "limit" ? "limits" : name || "limits";
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.dataset.view === current);
  turn += 1;
  tip(null);
  shown = name === "limit" ? limitView(id) : name === "job" ? jobView(id) : name === "changes" ? changesView() : limitsView();
  refreshNow();
}
let timer;
async function refreshNow() {
  clearTimeout(timer);
  const alert = document.getElementById("alert");
  try {
    await shown.refresh();
    if (!about.store || !alert.hidden) await learn();  // the token was missing, or the server was restarted and may show another store
    alert.hidden = true;
    document.body.dataset.ready = "true";
  } catch (error) {
    if (error.status === 401) { if (!dialog.open) askToken(); } else {
      alert.textContent = `${error.message} Trying again.`;
      alert.hidden = false;
    }
  }
  later();
}
function later() { clearTimeout(timer); timer = setTimeout(() => (held || document.hidden ? later() : refreshNow()), EVERY_MS); }
function hold() {
  held = !held;
  const button = document.getElementById("hold");
  button.setAttribute("aria-pressed", String(held));
  button.textContent = held ? "Frozen" : "Freeze";
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
  try { await learn(); } catch { /* the first request for data shows the error */ }
  route();
}
begin();
