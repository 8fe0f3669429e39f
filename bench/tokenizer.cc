// The tokenizer's speed, as JSON lines: each text once with a fresh scratch, the first of them
// right after loading; with --doubling, how the time grows when monotonous text doubles. Times are
// those of the thread, so that other programs on the machine count only where they take caches and
// memory. The last line is the Engram token map, with the digest by which maps are published.
//
// usage: bench-tokenizer TOKENIZER.json [--doubling | TEXT...]
//
// bench/tokenizer_texts.py makes texts. For a first pass that nothing has prepared, give one text.

#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "sys/file.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

constexpr int kRuns = 7;
constexpr size_t kSizes[] = {500'000, 1'000'000, 2'000'000};

// What is repeated; text in a row without a space is one piece, or as many as it has numbers.
struct Monotony {
  const char* name;
  const char* unit;
};
constexpr Monotony kMonotonies[] = {
    {"letter", "a"},
    {"spaces", " "},
    {"digits", "7"},
    {"newlines", "\n"},
    {"punctuation", "!"},
    {"control", "\x01"},
    {"two letters", "ab"},
    {"combining marks", "e\u0301\u0323"},
    {"emoji joined", "\U0001f468\u200d\U0001f469\u200d\U0001f467"},
    {"ideograph", "\u4e2d"},
    {"not UTF-8", "\xff"},
    {"token look-alike", "<\uff5cU"},
};

double seconds_of_thread() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Seconds that `tokenizer` takes to encode `text`; the scratch is new.
double seconds(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>& ids) {
  ids.clear();
  Tokenizer::Scratch scratch;
  const double begin = seconds_of_thread();
  tokenizer.encode(text, SpecialTokens::kRecognise, scratch, ids);
  return seconds_of_thread() - begin;
}

void print_first_pass(const Tokenizer& tokenizer, const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.has_value()) {
    std::fprintf(stderr, "%s\n", text.error().message.c_str());
    return;
  }
  std::vector<int32_t> ids;
  const double took = seconds(tokenizer, text.value(), ids);
  std::printf(
      "{\"bench\": \"tokenizer\", \"what\": \"first pass\", \"text\": \"%s\", \"bytes\": %zu, "
      "\"ids\": %zu, \"ms\": %.1f, \"value\": %.1f, \"unit\": \"MB/s\"}\n",
      path.c_str(), text.value().size(), ids.size(), took * 1e3, text.value().size() / took / 1e6);
}

// The best of several runs, sizes taking turns: what disturbs one run does not make a ratio.
void print_doubling(const Tokenizer& tokenizer, const Monotony& monotony) {
  double best[std::size(kSizes)];
  std::fill(std::begin(best), std::end(best), 1e9);
  const std::string unit = monotony.unit;
  std::vector<int32_t> ids;
  for (int run = 0; run < kRuns; ++run) {
    for (size_t s = 0; s < std::size(kSizes); ++s) {
      std::string text;
      while (text.size() < kSizes[s]) text += unit;
      best[s] = std::min(best[s], seconds(tokenizer, text, ids));
    }
  }
  std::printf(
      "{\"bench\": \"tokenizer\", \"what\": \"doubling\", \"text\": \"%s\", \"ms\": [%.2f, %.2f, "
      "%.2f], \"factors\": [%.2f, %.2f]}\n",
      monotony.name, best[0] * 1e3, best[1] * 1e3, best[2] * 1e3, best[1] / best[0],
      best[2] / best[1]);
}

void print_token_map(const Tokenizer& tokenizer) {
  const double begin = seconds_of_thread();
  const TokenMap map = make_token_map(tokenizer);
  const double took = seconds_of_thread() - begin;
  std::string bytes;  // little-endian int32
  for (int32_t id : map.compressed_ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes += char(uint32_t(id) >> shift);
  }
  std::printf(
      "{\"bench\": \"tokenizer\", \"what\": \"token map\", \"ids\": %d, \"sha256\": \"%s\", "
      "\"ms\": %.0f}\n",
      map.compressed_vocab_size, sha256(bytes).c_str(), took * 1e3);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench-tokenizer TOKENIZER.json [--doubling | TEXT...]\n");
    return 2;
  }
  const Result<std::string> json = read_file(argv[1]);
  if (!json.has_value()) {
    std::fprintf(stderr, "%s\n", json.error().message.c_str());
    return 1;
  }
  const double begin = seconds_of_thread();
  const Result<Tokenizer> tokenizer = Tokenizer::parse(json.value());
  const double took = seconds_of_thread() - begin;
  if (!tokenizer.has_value()) {
    std::fprintf(stderr, "%s: %s\n", argv[1], tokenizer.error().message.c_str());
    return 1;
  }
  std::printf("{\"bench\": \"tokenizer\", \"what\": \"load\", \"value\": %.0f, \"unit\": \"ms\"}\n",
              took * 1e3);
  if (argc == 3 && std::string_view(argv[2]) == "--doubling") {
    for (const Monotony& monotony : kMonotonies) print_doubling(tokenizer.value(), monotony);
  } else {
    for (int i = 2; i < argc; ++i) print_first_pass(tokenizer.value(), argv[i]);
  }
  print_token_map(tokenizer.value());
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(argc, argv); }
