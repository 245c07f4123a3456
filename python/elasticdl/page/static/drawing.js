// Draws curves and the time line as SVG. It is given values and an element, and asks nothing of the server.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function titled(element, text) {
  element.append(node("title", {}, text));
  return element;
}

// `25 s`, `3:05 min`, `2:03:05 h`, as in a terminal: a bare 0:25 could be minutes, or hours.
export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 4 });
}

// Steps of 1, 2 or 5 times a power of ten, `least` or more, so that at most `most` of them cover the range.
function ticks(low, high, most, least) {
  const rough = Math.max(least, (high - low) / most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high + step * 1e-9; number++) found.push(number * step);
  return found;
}

function timeTicks(seconds, most) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800];
  const step = steps.find((size) => seconds / size <= most) ?? Math.ceil(seconds / most);
  const found = [];
  for (let at = 0; at <= seconds; at += step) found.push(at);
  return found;
}

// points: [time, step, value]; `by`: 1 for steps, 0 for the seconds since `began`; `name`: for those who hear the page.
export function drawCurve(place, name, points, by, began, dotted) {
  const width = Math.max(200, place.clientWidth), height = 150, left = 52, bottom = 18, top = 6, right = 8;
  const xs = points.map((point) => (by ? point[1] : point[0] - began)), ys = points.map((point) => point[2]);
  let [lowX, highX] = [Math.min(...xs), Math.max(...xs)];
  let [lowY, highY] = [Math.min(...ys), Math.max(...ys)];
  if (lowX === highX) highX += 1;
  if (lowY === highY) [lowY, highY] = [lowY - (Math.abs(lowY) / 10 || 1), highY + (Math.abs(highY) / 10 || 1)];
  const x = (value) => left + ((value - lowX) / (highX - lowX)) * (width - left - right);
  const y = (value) => height - bottom - ((value - lowY) / (highY - lowY)) * (height - bottom - top);
  const [last, least, most] = [ys[ys.length - 1], Math.min(...ys), Math.max(...ys)].map(figure);
  const label = `${name}: ${last} at step ${points[points.length - 1][1]}, lowest ${least}, highest ${most}`;
  const drawing = node("svg", { width, height, role: "img", "aria-label": label });
  for (const value of ticks(lowY, highY, 4, ys.every(Number.isInteger) ? 1 : 0)) {
    drawing.append(node("path", { class: "axis", d: `M${left} ${y(value)}H${width - right}` }));
    drawing.append(node("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, figure(value)));
  }
  for (const value of by ? ticks(lowX, highX, 5, 1) : timeTicks(highX, Math.min(5, Math.floor(width / 75)))) {
    if (value < lowX) continue;
    const anchor = x(value) > width - 30 ? "end" : "middle";
    drawing.append(node("text", { x: x(value), y: height - 4, "text-anchor": anchor }, by ? figure(value) : clock(value)));
  }
  const sort = dotted ? " validation" : "";
  // What holds until it changes is drawn so; from one step to the next a line is enough.
  const to = (px, py) => (by ? `L${px} ${py}` : `H${px}V${py}`);
  const path = xs.map((value, index) => {
    const px = x(value).toFixed(1), py = y(ys[index]).toFixed(1);
    return index ? to(px, py) : `M${px} ${py}`;
  }).join("");
  drawing.append(node("path", { class: `curve${sort}`, d: path }));
  if (dotted && points.length <= 100) {
    xs.forEach((value, index) => {
      const dot = node("circle", { class: "validation", cx: x(value), cy: y(ys[index]), r: 3 });
      drawing.append(titled(dot, `step ${points[index][1]}: ${figure(ys[index])}`));
    });
  }
  place.replaceChildren(drawing);
}

// `worded`: the word for each phase.
export function drawTimeline(place, line, now, worded) {
  const width = Math.max(240, place.clientWidth), rowHeight = 20, left = 68, top = 4;
  const until = Math.max(now, line.began + 1);
  const rows = line.rows.length + (line.evaluations.length ? 1 : 0);
  const height = top + rows * rowHeight + 20;
  const x = (time) => left + ((time - line.began) / (until - line.began)) * (width - left - 8);
  const latest = line.rows.map((row) => row.spans[row.spans.length - 1]).map((span) => `${span.process} ${worded(span.phase)}`);
  const label = `time line of ${line.rows.length} processes, last: ${latest.join(", ")}`;
  const drawing = node("svg", { width, height, role: "img", "aria-label": label });
  const bottom = height - 18;
  for (const at of timeTicks(until - line.began, Math.floor(width / 110))) {
    drawing.append(node("path", { class: "axis", d: `M${x(line.began + at)} ${top}V${bottom}` }));
    const anchor = x(line.began + at) > width - 30 ? "end" : "middle";
    drawing.append(node("text", { x: x(line.began + at), y: height - 4, "text-anchor": anchor }, clock(at)));
  }
  line.rows.forEach((row, index) => {
    const y = top + index * rowHeight;
    drawing.append(node("text", { class: "row", x: 0, y: y + 14 }, row.name));
    // Losses on top, and wide enough to be seen: what replaces a process is often started in the same moment.
    const losses = row.spans.filter((span) => span.phase === "lost");
    for (const span of [...row.spans.filter((one) => one.phase !== "lost"), ...losses]) {
      // A loss is higher, too: not everybody tells red from green.
      const [least, margin] = span.phase === "lost" ? [4, 0] : [1.5, 4];
      const from = x(span.since), to = x(span.until ?? until);
      const box = { x: from, y: y + margin, width: Math.max(least, to - from), height: rowHeight - 2 * margin };
      const bar = node("rect", { class: span.phase, ...box });
      bar.dataset.process = span.process;
      const end = span.until === null ? "now" : clock(span.until - line.began);
      titled(bar, `${span.process} ${worded(span.phase)}, ${clock(span.since - line.began)} to ${end}${span.why ? `: ${span.why}` : ""}`);
      drawing.append(bar);
    }
  });
  const y = top + line.rows.length * rowHeight;
  if (line.evaluations.length) drawing.append(node("text", { class: "row", x: 0, y: y + 14 }, "evaluation"));
  for (const one of line.evaluations) {
    const from = Math.max(left, x(one.since));
    const bar = node("rect", { class: "evaluation", x: from, y: y + 6, width: Math.max(1.5, x(one.until) - from), height: rowHeight - 12 });
    drawing.append(titled(bar, one.text));
  }
  for (const mark of line.marks) {
    const stroke = node("path", { class: "mark", d: `M${x(mark.time)} ${top}V${bottom}` });
    drawing.append(titled(stroke, `${clock(mark.time - line.began)} ${mark.kind}: ${mark.text}`));
  }
  place.replaceChildren(drawing);
}
