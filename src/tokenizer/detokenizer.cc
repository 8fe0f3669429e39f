#include "tokenizer/detokenizer.h"

#include "tokenizer/utf8.h"

namespace millrace {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  for (char byte : bytes) push_byte(byte, text);
}

void Utf8Stream::push_byte(char byte, std::string& text) {
  const auto value = static_cast<unsigned char>(byte);
  if (num_held_ > 0) {
    const Utf8Lead lead = utf8_lead(static_cast<unsigned char>(held_[0]));
    const bool continues = num_held_ == 1 ? lead.second_min <= value && value <= lead.second_max
                                          : (value & 0xc0) == 0x80;
    if (continues && num_held_ + 1 == lead.size) {
      text.append(held_, num_held_).push_back(byte);
      num_held_ = 0;
    } else if (continues) {
      held_[num_held_++] = byte;
    }
    if (continues) return;
    finish(text);
  }
  switch (utf8_lead(value).size) {
    case 0:
      text += kReplacement;
      break;
    case 1:
      text += byte;
      break;
    default:
      held_[num_held_++] = byte;
  }
}

void Utf8Stream::finish(std::string& text) {
  if (num_held_ > 0) text += kReplacement;
  num_held_ = 0;
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  Utf8Stream stream;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

}  // namespace millrace
