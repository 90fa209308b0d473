"use strict";
// Draws one map or curve of one run, and says what is under the pointer, the finger or the arrow keys.
(() => {
  const by = (name) => document.getElementById(`explore-${name}`);
  const runs = JSON.parse(by("data").textContent);
  const [run, what, plot, said] = ["run", "what", "plot", "said"].map(by);
  const ink = plot.getContext("2d");
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const SEISMIC = [[0, 0, 120], [60, 60, 255], [255, 255, 255], [255, 60, 60], [128, 0, 0]];
  let figure, box, at;

  const visible = (token) => token.replace(/^[Ġ▁ ]/, "␣").replace(/[\nĊ]/g, "\\n");
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  function colour(share, scale) {
    const x = clamp(share, 0, 1) * (scale.length - 1), i = Math.min(Math.floor(x), scale.length - 2);
    return scale[i].map((c, k) => Math.round(c + (x - i) * (scale[i + 1][k] - c)));
  }

  function unpack(map) {
    const bytes = Uint8Array.from(atob(map.values), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    map.numbers = Float64Array.from({length: bytes.length / 2}, (_, i) => map.least + map.step * view.getUint16(2 * i, true));
  }

  const columns = () => figure.shape ? figure.shape[1] : figure.mean.length;
  const rows = () => figure.shape ? figure.shape[0] : 1;
  const number = (value, range) => value.toFixed(clamp(4 - Math.floor(Math.log10(range || 1)), 0, 9));

  function start(ratio) {
    const width = plot.clientWidth, height = clamp(width * 0.55, 260, 420);
    Object.assign(plot, {width: width * ratio, height: height * ratio});
    plot.style.height = `${height}px`;
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.font = "12px system-ui, sans-serif";
    box = {x: 46, y: 10, w: width - 56, h: height - (figure.shape ? 88 : 50)};
  }

  function label(text, x, y, align = "center", turn = 0) {
    ink.save();
    ink.translate(x, y);
    ink.rotate(turn);
    Object.assign(ink, {fillStyle: "#333", textAlign: align, textBaseline: "middle"});
    ink.fillText(text, 0, 0);
    ink.restore();
  }

  function line(values, place, style, width, dash = []) {
    Object.assign(ink, {strokeStyle: style, lineWidth: width});
    ink.setLineDash(dash);
    ink.beginPath();
    values.forEach((value, l) => ink.lineTo(...place(l, value)));
    ink.stroke();
    ink.setLineDash([]);
  }

  function drawMap() {
    const [n, m] = figure.shape, [low, high] = figure.limits, w = box.w / m, h = box.h / n;
    const image = new ImageData(m, n), scale = figure.signed ? SEISMIC : VIRIDIS;
    figure.numbers.forEach((value, i) => {
      const place = 4 * ((n - 1 - Math.floor(i / m)) * m + i % m);
      image.data.set([...colour((value - low) / (high - low), scale), 255], place);
    });
    const small = Object.assign(document.createElement("canvas"), {width: m, height: n});
    small.getContext("2d").putImageData(image, 0, 0);
    ink.imageSmoothingEnabled = false;
    ink.drawImage(small, box.x, box.y, box.w, box.h);
    const every = Math.ceil(n / 8), apart = Math.ceil(13 / w);
    for (let l = 0; l < n; l += every) label(l, box.x - 6, box.y + (n - l - 0.5) * h, "right");
    for (let t = 0; t < m; t += apart) {
      const token = figure.tokens.length ? visible(figure.tokens[t]).slice(0, 8) : t;
      label(token, box.x + (t + 0.5) * w, box.y + box.h + 5, "right", -Math.PI / 2);
    }
    label("Token", box.x + box.w / 2, box.y + box.h + 70);
    label("Layer", box.x - 36, box.y + box.h / 2, "center", -Math.PI / 2);
    if (at) {
      Object.assign(ink, {strokeStyle: "#fff", lineWidth: 3});
      ink.strokeRect(box.x + at.column * w, box.y + (n - 1 - at.row) * h, w, h);
      Object.assign(ink, {strokeStyle: "#000", lineWidth: 1});
      ink.strokeRect(box.x + at.column * w, box.y + (n - 1 - at.row) * h, w, h);
    }
  }

  function scaleOf() {
    const all = [figure.mean, ...figure.prompts].flat().concat(figure.level ?? []);
    const low = Math.min(...all), high = Math.max(...all), room = 0.04 * (high - low || 1);
    return [low - room, high + room];
  }

  const x = (l) => box.x + box.w * l / Math.max(figure.mean.length - 1, 1);

  function drawCurve() {
    const [low, high] = scaleOf(), y = (v) => box.y + box.h * (high - v) / (high - low), n = figure.mean.length;
    const place = (l, v) => [x(l), y(v)], each = (pick) => figure.mean.map((_, l) => pick(...figure.prompts.map((p) => p[l])));
    if (figure.prompts.length) {
      const [least, most] = [each(Math.min), each(Math.max)];
      ink.beginPath();
      most.forEach((v, l) => ink.lineTo(...place(l, v)));
      for (let l = n - 1; l >= 0; l--) ink.lineTo(...place(l, least[l]));
      ink.fillStyle = "#dce6f2";
      ink.fill();
    }
    figure.prompts.forEach((p, i) => line(p, place, i === at?.prompt ? "#d55e00" : "#9db7d5", i === at?.prompt ? 2 : 0.7));
    line(figure.mean, place, "#1f4e79", 2.5);
    if (figure.level !== undefined) line([figure.level, figure.level], (i, v) => [box.x + i * box.w, y(v)], "#555", 1, [4, 3]);
    if (figure.depth != null) line([low, high], (i, v) => [x(figure.depth), y(v)], "#555", 1, [1, 3]);
    Object.assign(ink, {strokeStyle: "#999", lineWidth: 1});
    ink.strokeRect(box.x, box.y, box.w, box.h);
    for (let i = 0; i <= 4; i++) {
      const value = low + (high - low) * i / 4;
      label(value.toFixed(clamp(2 - Math.floor(Math.log10(high - low)), 0, 6)), box.x - 5, y(value), "right");
    }
    for (let l = 0; l < n; l += Math.ceil(n / 12)) label(l, x(l), box.y + box.h + 12);
    label("Layer", box.x + box.w / 2, box.y + box.h + 32);
    if (at) line([low, high], (i, v) => [x(at.column), y(v)], "#000", 1);
  }

  function tell() {
    if (!at) {
      const depth = figure.depth === undefined ? "" : figure.depth === null ? " No effective depth." : ` Effective depth: layer ${figure.depth}, dotted.`;
      const spread = figure.prompts?.length ? ` Thick: all ${figure.prompts.length} prompts together; thin: each of them; shaded: from least to most.` : "";
      said.textContent = `${figure.title}${figure.about ? `: ${figure.about}` : ""}.${depth}${spread} Point at it, or use the arrow keys.`;
    } else if (figure.shape) {
      const range = figure.step * 65535, token = figure.tokens[at.column];
      const named = token === undefined ? "" : ` “${visible(token)}”`;
      said.textContent = `layer ${at.row}, token ${at.column}${named}: ${number(figure.numbers[at.row * columns() + at.column], range)}`;
    } else {
      const l = at.column, values = figure.prompts.map((p) => p[l]), [low, high] = scaleOf(), show = (v) => number(v, high - low);
      const spread = values.length ? `; prompts ${show(Math.min(...values))} to ${show(Math.max(...values))}` : "";
      const one = at.prompt === undefined ? "" : `; prompt ${at.prompt}: ${show(values[at.prompt])}`;
      said.textContent = `layer ${l}: mean ${show(figure.mean[l])}${spread}${one}`;
    }
  }

  function draw() {
    start(window.devicePixelRatio || 1);
    figure.shape ? drawMap() : drawCurve();
    tell();
  }

  function point(event) {
    const [px, py] = [event.offsetX - box.x, event.offsetY - box.y];
    if (figure.shape) {
      const column = clamp(Math.floor(px / box.w * columns()), 0, columns() - 1);
      at = {column, row: clamp(rows() - 1 - Math.floor(py / box.h * rows()), 0, rows() - 1)};
    } else {
      const [low, high] = scaleOf(), value = high - (high - low) * py / box.h;
      at = {column: clamp(Math.round(px / box.w * (columns() - 1)), 0, columns() - 1)};
      const off = figure.prompts.map((p) => Math.abs(p[at.column] - value));
      if (off.length) at.prompt = off.indexOf(Math.min(...off));
    }
    draw();
  }

  function press(event) {
    const [right, up] = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[event.key] ?? [0, 0];
    if (!right && !up) return;
    event.preventDefault();
    at ??= {column: -right, row: -up, prompt: figure.prompts?.length ? -up : undefined};
    at.column = clamp(at.column + right, 0, columns() - 1);
    at.row = clamp((at.row ?? 0) + up, 0, rows() - 1);
    if (figure.prompts?.length) at.prompt = clamp((at.prompt ?? 0) + up, 0, figure.prompts.length - 1);
    draw();
  }

  function choose() {
    figure = runs[run.value].figures[Math.max(what.selectedIndex, 0)];
    if (figure.shape && !figure.numbers) unpack(figure);
    at = undefined;
    draw();
  }

  function fill() {
    const before = what.value;
    what.replaceChildren(...runs[run.value].figures.map((one) => new Option(one.title)));
    what.selectedIndex = Math.max([...what.options].findIndex((option) => option.value === before), 0);
    choose();
  }

  run.replaceChildren(...runs.map((one, i) => new Option(one.run, i)));
  run.onchange = fill;
  what.onchange = choose;
  plot.onpointermove = plot.onpointerdown = point;
  plot.onpointerleave = (event) => { if (event.pointerType === "mouse") { at = undefined; draw(); } };
  plot.onkeydown = press;
  window.onresize = draw;
  window.onbeforeprint = () => { at = undefined; draw(); };
  fill();
})();
