// Charts: read-out, zoom by drag, log axes, smoothing, a larger view. Every chart reads without this script.
// A figure has its lines as JSON in `data-chart`. All charts of a page share one view, so they zoom and point together.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 58, TOP = 10, RIGHT = 20, BOTTOM = 26, MIN_DRAG = 6;
  const view = { logValues: false, logSteps: false, smoothing: 0, from: null, to: null, at: null, large: new Set() };
  let charts = [];
  let tools = null;
  let saving = 0; // a page that loads itself again keeps its view
  const kept = history.state && history.state.view;
  if (kept) Object.assign(view, kept, { large: new Set(kept.large), at: null });

  // numbers

  const rowsOf = (flat, width) => Array.from({ length: flat.length / width }, (_, row) => flat.slice(row * width, (row + 1) * width));

  function short(value) {
    const [scale, unit] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([least]) => Math.abs(value) >= least) || [1, ""];
    if (Math.abs(value) >= 1e4 && Number.isInteger(value)) return `${Number((value / scale).toPrecision(3))} ${unit}`;
    if (value && Math.abs(value) < 1e-4) return value.toExponential(3).replace(/\.?0*e/, "e");
    return Number(value.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 12 });
  }

  function ticks(low, high, most, isLog) {
    if (isLog) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        found.push(...[1, 2, 5].map((digit) => digit * 10 ** power).filter((tick) => tick >= low && tick <= high));
      }
      const decades = found.filter((tick) => Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6));
      if (found.length > 2 * most) return decades.filter((_, place) => place % Math.ceil(decades.length / most) === 0);
      if (found.length > 1) return found;
    }
    const raw = (high - low) / most;
    if (!(raw > 0)) return [];
    const scale = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((size) => size * scale).find((size) => size >= raw * 0.999);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(12)));
  }

  function scaleOf([low, high], start, length, isLog) {
    const [to, back] = isLog ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
    const [first, last] = [to(low), to(high)];
    return {
      pixels: (value) => start + (length * (to(value) - first)) / (last - first),
      value: (pixels) => back(first + ((pixels - start) / length) * (last - first)),
    };
  }

  // Exponential moving average without the bias of its start.
  function smoothed(points, weight) {
    let [sum, total] = [0, 0];
    return points.map(([step, value]) => {
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return [step, sum / total];
    });
  }

  function nearest(points, step) {
    return points.reduce((best, point) => (best && Math.abs(best[0] - step) <= Math.abs(point[0] - step) ? best : point), null);
  }

  // drawing

  function element(name, attributes, parent, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  function drawnOf(line) {
    const fits = ([step, value]) => (!view.logSteps || step > 0) && (!view.logValues || value > 0);
    const parts = line.parts.map((part) => part.filter(fits)).filter((part) => part.length);
    const average = view.smoothing && line.means && !line.dots ? smoothed(line.means, view.smoothing).filter(fits) : [];
    const edges = [1, 2].map((edge) => line.spread.map((one) => [one[0], one[edge]]));
    const [low, high] = average.length ? edges.map((edge) => smoothed(edge, view.smoothing)) : edges;
    const spread = low.map((one, place) => [...one, high[place][1]]).filter(fits);
    return { ...line, parts, average, spread, points: parts.flat() };
  }

  function draw(chart) {
    const isLarge = view.large.has(chart.title);
    chart.figure.classList.toggle("large", isLarge);
    chart.button.textContent = isLarge ? "Smaller" : "Larger";
    // After the class is set: a larger figure has another width
    const [width, height] = isLarge ? [Math.max(320, Math.round(chart.svg.clientWidth)), 380] : [440, 190];
    const lines = (chart.drawn = chart.lines.map(drawnOf));
    const steps = lines.flatMap((line) => line.points.map(([step]) => step));
    if (!steps.length) return;
    let across = [view.from ?? steps.reduce((a, b) => Math.min(a, b)), view.to ?? steps.reduce((a, b) => Math.max(a, b))];
    if (!(across[1] > across[0])) across = [across[0] - 1, across[0] + 1];
    if (view.logSteps) across[0] = Math.max(across[0], steps.reduce((a, b) => Math.min(a, b)));
    const isIn = ([step]) => step >= across[0] && step <= across[1];
    // A smoothed curve sets the frame: it is what the reader looks at
    const shown = lines.flatMap((line) => [
      ...(line.average.length ? line.average : line.points).filter(isIn).map(([, value]) => value),
      ...line.spread.filter(isIn).flatMap(([, low, high]) => [low, high]),
    ]);
    let [low, high] = shown.length ? [shown.reduce((a, b) => Math.min(a, b)), shown.reduce((a, b) => Math.max(a, b))] : [0, 1];
    if (high - low <= 1e-9 * Math.abs(high)) [low, high] = view.logValues ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 1), high + (Math.abs(low) / 10 || 1)];
    else if (view.logValues) [low, high] = [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
    else [low, high] = [low - 0.05 * (high - low), high + 0.05 * (high - low)];
    const plot = { left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
    chart.x = scaleOf(across, plot.left, plot.width, view.logSteps);
    chart.y = scaleOf([low, high], plot.top + plot.height, -plot.height, view.logValues);
    Object.assign(chart, { plot, across, up: [low, high] });
    const isPlain = !isLarge && !view.logValues && !view.logSteps && !view.smoothing && view.from === null;
    chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (isPlain) chart.svg.innerHTML = chart.original; // drawn by the server
    else drawAgain(chart);
    chart.hover = element("g", {}, chart.svg);
    point(chart);
  }

  function drawAgain(chart) {
    const { svg, plot, x, y } = chart;
    const [bottom, right] = [plot.top + plot.height, plot.left + plot.width];
    svg.replaceChildren();
    const clip = element("clipPath", { id: `plot-${charts.indexOf(chart)}` }, svg);
    element("rect", { x: plot.left, y: plot.top, width: plot.width, height: plot.height }, clip);
    for (const tick of ticks(...chart.up, Math.round(plot.height / 40), view.logValues)) {
      element("path", { class: "grid", d: `M${plot.left},${y.pixels(tick)}H${right}` }, svg);
      element("text", { x: plot.left - 6, y: y.pixels(tick) + 4, "text-anchor": "end" }, svg, short(tick));
    }
    for (const tick of ticks(...chart.across, Math.max(3, Math.round(plot.width / 75)), view.logSteps)) {
      element("text", { x: x.pixels(tick), y: bottom + 18, "text-anchor": "middle" }, svg, short(tick));
    }
    element("path", { class: "axis", d: `M${plot.left},${bottom}H${right}` }, svg);
    const body = element("g", { "clip-path": `url(#${clip.id})` }, svg);
    const at = ([step, value]) => `${x.pixels(step).toFixed(1)},${y.pixels(value).toFixed(1)}`;
    const path = (points) => `M${points.map(at).join(" ")}`;
    for (const line of chart.drawn) {
      if (line.spread.length) {
        const edge = [...line.spread.map(([step, low]) => [step, low]), ...line.spread.map(([step, , high]) => [step, high]).reverse()];
        element("path", { class: `spread place-${line.place}`, d: path(edge) }, body);
      }
      if (line.dots || line.parts.every((part) => part.length === 1)) {
        for (const dot of line.points) {
          element("circle", { class: `dot place-${line.place}`, cx: x.pixels(dot[0]), cy: y.pixels(dot[1]), r: 2.6 }, body);
        }
      } else {
        const faded = line.average.length ? " faded" : "";
        element("path", { class: `curve place-${line.place}${faded}`, d: line.parts.map(path).join(" ") }, body);
        if (faded) element("path", { class: `curve place-${line.place}`, d: path(line.average) }, body);
      }
    }
  }

  // Mark the step that the reader points at, in every chart, and say its values.
  function point(chart) {
    chart.hover.replaceChildren();
    chart.readout.replaceChildren();
    if (view.at === null || view.at < chart.across[0] || view.at > chart.across[1]) return;
    const found = chart.drawn.map((line) => [line, nearest(line.points, view.at)]).filter(([, near]) => near);
    if (!found.length) return;
    const step = nearest(found.map(([, near]) => near), view.at)[0];
    element("path", { class: "crosshair", d: `M${chart.x.pixels(step)},${chart.plot.top}V${chart.plot.top + chart.plot.height}` }, chart.hover);
    chart.readout.append(`step ${step.toLocaleString("en")}`);
    for (const [line, near] of found) {
      if (near[1] >= chart.up[0] && near[1] <= chart.up[1]) {
        element("circle", { class: `dot place-${line.place}`, cx: chart.x.pixels(near[0]), cy: chart.y.pixels(near[1]), r: 3.2 }, chart.hover);
      }
      const average = nearest(line.average, view.at);
      const value = document.createElement("span");
      value.className = `key place-${line.place}`;
      value.append(document.createElement("i"));
      value.append(`${found.length > 1 ? `${line.name} ` : ""}${short(near[1])}`);
      if (average) value.append(`, smoothed ${short(average[1])}`);
      if (near[0] !== step) value.append(` (at ${near[0].toLocaleString("en")})`);
      chart.readout.append(" ", value);
    }
  }

  // reading

  function drawAll() {
    charts.forEach(draw);
    tools.querySelector("button").hidden = view.from === null;
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState({ ...history.state, view: { ...view, large: [...view.large] } }, ""), 300);
  }

  function zoom(from, to) {
    Object.assign(view, { from, to });
    drawAll();
  }

  function pointAt(step) {
    view.at = step;
    charts.forEach(point);
  }

  // Open the page of the step that the reader points at.
  function explain(chart) {
    const part = chart.figure.closest("[data-steps]");
    const near = part && view.at !== null && nearest(chart.drawn[0].points, view.at);
    if (near) location.assign(`${part.dataset.steps}${near[0]}`);
  }

  function read(chart) {
    const { svg } = chart;
    let start = null;
    const pixelsOf = (event) => {
      const box = svg.getBoundingClientRect();
      const pixels = ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width;
      return Math.min(Math.max(pixels, chart.plot.left), chart.plot.left + chart.plot.width);
    };
    svg.addEventListener("pointermove", (event) => {
      pointAt(chart.x.value(pixelsOf(event)));
      if (start === null) return;
      const [low, high] = [start, pixelsOf(event)].sort((one, other) => one - other);
      element("rect", { class: "brush", x: low, y: chart.plot.top, width: high - low, height: chart.plot.height }, chart.hover);
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = pixelsOf(event);
      svg.setPointerCapture(event.pointerId);
      svg.classList.add("dragging");
    });
    const stop = (event) => {
      svg.classList.remove("dragging");
      const [low, high] = [start ?? 0, event.type === "pointerup" ? pixelsOf(event) : start ?? 0].sort((one, other) => one - other);
      start = null;
      if (high - low > MIN_DRAG) zoom(chart.x.value(low), chart.x.value(high));
      else if (event.type === "pointerup") explain(chart);
    };
    svg.addEventListener("pointerup", stop);
    svg.addEventListener("pointercancel", stop);
    svg.addEventListener("pointerleave", () => start === null && document.activeElement !== svg && pointAt(null));
    svg.addEventListener("dblclick", () => zoom(null, null));
    svg.addEventListener("focus", () => chart.readout.setAttribute("aria-live", "polite"));
    svg.addEventListener("blur", () => chart.readout.removeAttribute("aria-live"));
    svg.addEventListener("keydown", (event) => {
      const [low, high] = chart.across;
      const steps = [...new Set(chart.drawn[0].points.map(([step]) => step))].filter((step) => step >= low && step <= high);
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      const middle = view.at ?? (low + high) / 2;
      if (move && steps.length) {
        const place = view.at === null ? -1 : steps.indexOf(nearest(steps.map((step) => [step]), view.at)[0]);
        pointAt(steps[Math.min(Math.max(place + move, 0), steps.length - 1)]);
      } else if (event.key === "+") zoom(Math.max(low, middle - (high - low) / 4), Math.min(high, middle + (high - low) / 4));
      else if (event.key === "Enter") explain(chart);
      else if (event.key === "Escape" || event.key === "-") zoom(null, null);
      else return;
      event.preventDefault();
    });
  }

  function chartOf(figure) {
    const svg = figure.querySelector("svg");
    const caption = figure.querySelector("figcaption");
    const title = caption.firstChild.textContent.trim();
    const lines = JSON.parse(figure.dataset.chart).map((line) => {
      const parts = line.parts.map((part) => rowsOf(part, 2));
      const means = line.means && (line.means.length ? rowsOf(line.means, 2) : parts.flat());
      return { ...line, parts, means, spread: rowsOf(line.spread, 3) };
    });
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.setAttribute("aria-label", `Size of the chart ${title}`);
    button.addEventListener("click", () => {
      if (!view.large.delete(title)) view.large.add(title);
      drawAll();
    });
    caption.append(button);
    const readout = document.createElement("p");
    readout.className = lines.length > 1 ? "readout several" : "readout";
    caption.after(readout);
    svg.tabIndex = 0;
    const chart = { figure, svg, title, lines, button, readout, original: svg.innerHTML };
    read(chart);
    return chart;
  }

  function makeTools(before) {
    tools = document.createElement("div");
    tools.className = "chart-tools";
    const field = (label, attributes, change) => {
      const made = document.createElement("label");
      const input = Object.assign(document.createElement("input"), attributes);
      input.addEventListener("input", () => {
        change(input);
        drawAll();
      });
      made.append(...(input.type === "checkbox" ? [input, ` ${label}`] : [`${label} `, input]));
      return made;
    };
    const whole = Object.assign(document.createElement("button"), { type: "button", textContent: "Whole range", hidden: true });
    whole.addEventListener("click", () => zoom(null, null));
    const hint = Object.assign(document.createElement("span"), { className: "remark", textContent: `Point to read values, drag to zoom${document.querySelector("[data-steps]") ? ", click to explain a step" : ""}.` });
    tools.append(
      field("Log values", { type: "checkbox", checked: view.logValues }, (input) => (view.logValues = input.checked)),
      field("Log steps", { type: "checkbox", checked: view.logSteps }, (input) => (view.logSteps = input.checked)),
      field("Smoothing", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smoothing }, (input) => (view.smoothing = Number(input.value))),
      whole,
      hint,
    );
    before.before(tools);
  }

  function begin() {
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    charts = figures.map((figure) => charts.find((chart) => chart.figure === figure) || chartOf(figure));
    if (!charts.length) return;
    if (!tools) makeTools(figures[0].closest("[data-part], .keyed") || figures[0].closest(".figures"));
    drawAll();
  }

  document.addEventListener("part-shown", begin); // new content of a live page
  addEventListener("resize", () => charts.filter((chart) => view.large.has(chart.title)).forEach(draw));
  begin();
})();
