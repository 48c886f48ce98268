// Draws a payload's chart with Vega, which is fetched when the first figure is touched.

let loading;

function load() {
  loading ??= Promise.all([script("vega.js"), json("chart-theme.json")]).catch((error) => {
    loading = undefined; // so that the next touch tries again
    throw error;
  });
  return loading;
}

function script(name) {
  return new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = new URL(name, import.meta.url);
    element.onload = () => resolve(window.vegaEmbed);
    element.onerror = () => reject(new Error(`${name} did not load`));
    document.head.append(element);
  });
}

async function json(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.json();
}

const isDark = () => document.body.dataset.mdColorScheme === "slate";

function inScheme(text, dark) {
  if (!isDark()) return text;
  for (const [light, swapped] of Object.entries(dark)) text = text.replaceAll(light, swapped);
  return text;
}

// Returns Vega's result for the chart, `width` pixels wide, drawn into `element` at `step`.
export async function draw(element, payload, step, width) {
  const [embed, theme] = await load();
  const { plots, margin } = payload.sizing;
  const plotWidth = plots ? Math.max(40, Math.floor((width - margin) / plots)) : 0;
  const text = JSON.stringify(payload.spec).replaceAll('"@width"', String(plotWidth));
  const spec = JSON.parse(inScheme(text, theme.dark));
  spec.description = payload.title;
  for (const parameter of spec.params ?? []) if (parameter.name === "step") parameter.value = step;
  const config = width < 480 ? theme.narrow : theme.wide;
  return embed(element, spec, {
    mode: "vega-lite",
    config: JSON.parse(inScheme(JSON.stringify(config), theme.dark)),
    ast: true, // with Vega's expression interpreter, so no `eval`
    actions: false,
    defaultStyle: false,
    renderer: "svg",
    tooltip: { disableDefaultStyle: true },
  });
}
