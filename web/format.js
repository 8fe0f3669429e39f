// Numbers and JSON as people read them. Pure.

export function count(value) {
  return Math.round(value).toLocaleString("en");
}

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function rate(value) {
  return value < 10 ? value.toFixed(1) : count(value);
}

export function seconds(value) {
  if (value < 0.0001) return "< 0.1 ms";
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.floor(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1024 ** power;
  return `${power > 0 && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power]}`;
}

export function percent(fraction) {
  const value = fraction * 100;
  if (value === 0 || value === 100) return `${value} %`;
  if (value < 0.01) return "< 0.01 %";
  return `${value < 1 || value > 99 ? value.toFixed(2) : value.toFixed(1)} %`;
}

// Indents JSON that may end anywhere, so that arguments can be shown while they stream. It moves
// white space outside of strings and nothing else.
export function prettyJson(text) {
  let out = "";
  let depth = 0;
  let inString = false;
  const newLine = () => "\n" + "  ".repeat(depth);
  for (let i = 0; i < text.length; ++i) {
    const c = text[i];
    if (inString) {
      out += c;
      if (c === "\\") out += text[++i] ?? "";
      else if (c === '"') inString = false;
    } else if (c === '"') {
      inString = true;
      out += c;
    } else if (c === "{" || c === "[") {
      ++depth;
      const rest = text.slice(i + 1).trimStart();
      const isEmpty = rest.startsWith(c === "{" ? "}" : "]");
      out += isEmpty || rest === "" ? c : c + newLine();
    } else if (c === "}" || c === "]") {
      depth = Math.max(0, depth - 1);
      out += /[{[]$/.test(out) ? c : newLine() + c;
    } else if (c === ",") {
      out += c + newLine();
    } else if (c === ":") {
      out += ": ";
    } else if (!/\s/.test(c)) {
      out += c;
    }
  }
  return out;
}
