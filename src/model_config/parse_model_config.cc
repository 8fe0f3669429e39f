#include <algorithm>
#include <boost/json.hpp>

#include "base/format.h"
#include "json/document.h"
#include "model_config/model_config.h"

namespace millrace {
namespace {

namespace json = boost::json;

constexpr JsonFileLimits kLimits = {.max_bytes = 1 << 20, .max_depth = 32};
constexpr size_t kMaxListEntries = 4096;

// Other spellings of a key: the names of the reference's flat inference/config.json.
constexpr struct {
  std::string_view key, flat;
} kFlatNames[] = {
    {"hidden_size", "dim"},
    {"num_hidden_layers", "n_layers"},
    {"num_attention_heads", "n_heads"},
    {"moe_intermediate_size", "moe_inter_dim"},
    {"scoring_func", "score_func"},
    {"sliding_window", "window_size"},
    {"index_source_layer_ids", "index_source_layers"},
    {"kv_source_layer_ids", "kv_source_layers"},
    {"candidate_source_layer_id", "candidate_source_layer"},
    {"engram_pad_token_id", "engram_pad_id"},
    {"rms_norm_eps", "norm_eps"},
    {"num_nextn_predict_layers", "n_mtp_layers"},
    {"num_hash_layers", "n_hash_layers"},
    {"qk_rope_head_dim", "rope_head_dim"},
    {"num_experts_per_tok", "n_activated_experts"},
    {"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
    {"routed_scaling_factor", "route_scale"},
    {"rope_scaling.factor", "rope_factor"},
    {"rope_scaling.beta_fast", "beta_fast"},
    {"rope_scaling.beta_slow", "beta_slow"},
    {"rope_scaling.original_max_position_embeddings", "original_seq_len"},
    {"quantization_config.quant_method", "dtype"},
    {"quantization_config.scale_fmt", "scale_fmt"},
    {"quantization_config.expert_dtype", "expert_dtype"},
    {"quantization_config.weight_block_size", "weight_block_size"},
    {"vision_config.num_hidden_layers", "vision_n_layers"},
    {"vision_config.hidden_size", "vision_dim"},
    {"vision_config.intermediate_size", "vision_inter_dim"},
    {"vision_config.patch_size", "vision_patch_size"},
    {"vision_config.downsample_ratio", "vision_downsample_ratio"},
};

// Reads typed fields of one object. The first problem is kept and every later read does nothing,
// so that a run of fields reads as a list; look at status() afterwards.
//
// Key "a.b" is field b of the nested object a; without that object, the flat name of "a.b".
class Reader {
 public:
  // `prefix` says in messages where the object stands.
  Reader(const json::object& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }

  bool has(std::string_view key) const { return find(key).value != nullptr; }

  template <class T>
  void required(std::string_view key, T& out) {
    read(key, out, true);
  }

  // Leaves `out` as it is when the key is absent or null.
  template <class T>
  void optional(std::string_view key, T& out) {
    read(key, out, false);
  }

  // The same, but null is refused: a size that somebody lost is not one that is left out.
  template <class T>
  void optional_not_null(std::string_view key, T& out) {
    const json::value* value = object_.if_contains(key);
    if (status_.ok() && value != nullptr && value->is_null()) {
      return fail({value, format(prefix_, key)}, kind_of(out));
    }
    read(key, out, false);
  }

  // The id of a token that there need not be. Without the key `out` stays.
  void optional_token(std::string_view key, int64_t& out) {
    read(key, out, false);
    if (status_.ok() && has(key) && out < 0) {
      fail(find(key), "an integer of at least 0, or no such key");
    }
  }

  // A field that may only have one value, and may be absent.
  template <class T>
  void constant(std::string_view key, T expected) {
    T found = expected;
    read(key, found, false);
    if (status_.ok() && found != expected) fail(find(key), text_of(expected));
  }

 private:
  struct Found {
    const json::value* value;
    std::string name;  // as written in the file
  };

  Found find(std::string_view key) const {
    const size_t dot = key.find('.');
    if (dot == std::string_view::npos) {
      if (const json::value* v = present(object_, key)) return {v, format(prefix_, key)};
    } else if (const json::value* outer = present(object_, key.substr(0, dot));
               outer != nullptr && outer->is_object()) {
      return {present(outer->get_object(), key.substr(dot + 1)), format(prefix_, key)};
    }
    const Found flat = find_flat(key);
    return flat.value != nullptr ? flat : Found{nullptr, format(prefix_, key)};
  }

  Found find_flat(std::string_view key) const {
    for (const auto& names : kFlatNames) {
      if (names.key == key) return {present(object_, names.flat), format(prefix_, names.flat)};
    }
    return {nullptr, ""};
  }

  static const json::value* present(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  void fail(const Found& found, std::string_view expected) {
    status_ = Error{Code::kInvalidArgument, format(found.name, ": found ", describe(found.value),
                                                   ", expected ", expected)};
  }

  template <class T>
  void read(std::string_view key, T& out, bool is_required) {
    if (!status_.ok()) return;
    const Found found = find(key);
    if (found.value == nullptr) {
      if (is_required) fail(found, kind_of(out));
      return;
    }
    if (!assign(*found.value, out)) return fail(found, kind_of(out));
    // A nested object beside it settles what is meant: its file uses `dtype` for something else.
    const Found flat = find_flat(key);
    if (key.find('.') == key.npos && flat.value != nullptr && flat.value != found.value) {
      fail(flat, format("no second name of ", found.name));
    }
  }

  static std::string_view kind_of(int64_t) { return "an integer"; }
  static std::string_view kind_of(double) { return "a number"; }
  static std::string_view kind_of(bool) { return "true or false"; }
  static std::string_view kind_of(const std::string&) { return "a string"; }
  static std::string_view kind_of(const std::vector<int64_t>&) {
    return "a list of at most 4096 integers";
  }
  static_assert(kMaxListEntries == 4096);
  static std::string_view kind_of(const std::vector<std::string>&) { return "a list of strings"; }

  static std::string text_of(bool value) { return value ? "true" : "false"; }
  static std::string text_of(const std::string& value) { return value; }
  static std::string text_of(const std::vector<std::string>& values) {
    return json::serialize(json::value_from(values));
  }

  static bool assign(const json::value& value, int64_t& out) {
    if (!value.is_int64()) return false;  // an uint64 here is one beyond the range of int64
    out = value.get_int64();
    return true;
  }
  static bool assign(const json::value& value, double& out) {
    if (!value.is_number()) return false;
    out = value.to_number<double>();
    return true;
  }
  static bool assign(const json::value& value, bool& out) {
    if (!value.is_bool()) return false;
    out = value.get_bool();
    return true;
  }
  static bool assign(const json::value& value, std::string& out) {
    if (!value.is_string()) return false;
    out.assign(value.get_string().begin(), value.get_string().end());
    return true;
  }
  static bool assign(const json::value& value, std::vector<int64_t>& out) {
    if (!value.is_array() || value.get_array().size() > kMaxListEntries) return false;
    out.clear();
    for (const json::value& entry : value.get_array()) {
      if (!entry.is_int64()) return false;
      out.push_back(entry.get_int64());
    }
    return true;
  }

  static bool assign(const json::value& value, std::vector<std::string>& out) {
    if (!value.is_array() || value.get_array().size() > kMaxListEntries) return false;
    out.clear();
    for (const json::value& entry : value.get_array()) {
      if (!assign(entry, out.emplace_back())) return false;
    }
    return true;
  }

  const json::object& object_;
  const std::string prefix_;
  Status status_;
};

// What the forward pass implements; another value means another model.
void read_constants(Reader& in) {
  in.constant("hidden_act", std::string("silu"));
  in.constant("scoring_func", std::string("sqrtsoftplus"));
  in.constant("topk_method", std::string("noaux_tc"));
  in.constant("attention_bias", false);
  in.constant("tie_word_embeddings", false);
  in.constant("rope_scaling.rope_type", std::string("yarn"));
}

void read_text(Reader& in, ModelConfig& c) {
  in.required("vocab_size", c.vocab_size);
  in.required("hidden_size", c.hidden_size);
  in.required("num_hidden_layers", c.num_hidden_layers);
  in.required("rms_norm_eps", c.rms_norm_eps);

  in.required("num_attention_heads", c.num_attention_heads);
  in.optional("num_key_value_heads", c.num_key_value_heads);
  in.required("head_dim", c.head_dim);
  in.required("qk_rope_head_dim", c.qk_rope_head_dim);
  in.required("q_lora_rank", c.q_lora_rank);
  in.required("o_lora_rank", c.o_lora_rank);
  in.required("o_groups", c.o_groups);
  in.required("sliding_window", c.sliding_window);
  in.required("rope_theta", c.rope_theta);
  in.required("compress_rope_theta", c.compress_rope_theta);
  in.required("rope_scaling.factor", c.rope_scaling.factor);
  in.required("rope_scaling.beta_fast", c.rope_scaling.beta_fast);
  in.required("rope_scaling.beta_slow", c.rope_scaling.beta_slow);
  in.required("rope_scaling.original_max_position_embeddings",
              c.rope_scaling.original_max_position_embeddings);

  in.required("compress_ratios", c.compress_ratios);
  in.required("kv_source_layer_ids", c.kv_source_layer_ids);
  in.required("index_source_layer_ids", c.index_source_layer_ids);
  in.required("index_n_heads", c.index_n_heads);
  in.required("index_head_dim", c.index_head_dim);
  in.required("index_topk", c.index_topk);
  in.required("candidate_source_layer_id", c.candidate_source_layer_id);
  if (c.candidate_source_layer_id != -1) {
    in.required("candidate_topk_blocks", c.candidate_topk_blocks);
    in.required("candidate_block_size", c.candidate_block_size);
  }

  in.required("moe_intermediate_size", c.moe_intermediate_size);
  in.required("n_routed_experts", c.n_routed_experts);
  in.optional("n_shared_experts", c.n_shared_experts);
  in.required("num_experts_per_tok", c.num_experts_per_tok);
  in.optional("num_hash_layers", c.num_hash_layers);
  in.required("swiglu_limit", c.swiglu_limit);
  in.required("routed_scaling_factor", c.routed_scaling_factor);
  in.optional("gate_temp", c.gate_temp);
  in.optional("norm_topk_prob", c.norm_topk_prob);

  in.required("hc_mult", c.hc_mult);
  in.required("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  in.required("hc_eps", c.hc_eps);

  in.required("engram_layer_ids", c.engram_layer_ids);
  if (!c.engram_layer_ids.empty()) {
    in.optional_not_null("engram_num_embeddings", c.engram_num_embeddings);
    in.required("engram_max_ngram_size", c.engram_max_ngram_size);
    in.required("engram_vocab_size", c.engram_vocab_size);
    in.required("engram_n_heads", c.engram_n_heads);
    in.required("engram_head_dim", c.engram_head_dim);
    in.required("engram_pad_token_id", c.engram_pad_token_id);
    in.required("engram_compressed_vocab_size", c.engram_compressed_vocab_size);
  }

  in.required("num_nextn_predict_layers", c.num_nextn_predict_layers);
  if (c.num_nextn_predict_layers != 0) {
    in.required("dspark_block_size", c.dspark_block_size);
    in.required("dspark_noise_token_id", c.dspark_noise_token_id);
    in.required("dspark_target_layer_ids", c.dspark_target_layer_ids);
    in.required("dspark_markov_rank", c.dspark_markov_rank);
    in.required("dspark_n_routed_experts", c.dspark_n_routed_experts);
    in.required("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok);
  }

  // Absent in the flat form: YaRN's own reach.
  c.max_position_embeddings = int64_t(
      std::clamp(c.rope_scaling.factor, 1.0, 1e6) *
      double(std::clamp<int64_t>(c.rope_scaling.original_max_position_embeddings, 1, 1 << 24)));
  in.optional("max_position_embeddings", c.max_position_embeddings);
}

void read_quantization(Reader& in, QuantizationConfig& q) {
  in.required("quantization_config.quant_method", q.quant_method);
  in.required("quantization_config.scale_fmt", q.scale_fmt);
  in.required("quantization_config.expert_dtype", q.expert_dtype);
  // Activations are scaled by what each block of them holds, not by stored numbers.
  in.constant("quantization_config.activation_scheme", std::string("dynamic"));
  if (in.has("quantization_config")) {
    in.required("quantization_config.weight_block_size", q.weight_block_size);
  } else {
    // The flat form does not state the block size; there has only been one.
    q.weight_block_size = {32, 32};
    in.optional("quantization_config.weight_block_size", q.weight_block_size);
  }
}

void read_vision(Reader& in, std::optional<VisionConfig>& vision) {
  if (!in.has("vision_config.num_hidden_layers") && !in.has("vision_config")) return;
  vision.emplace();
  in.constant("vision_config.model_type", std::string("deepseek_v41_vision"));
  in.required("vision_config.num_hidden_layers", vision->num_hidden_layers);
  in.required("vision_config.hidden_size", vision->hidden_size);
  in.required("vision_config.intermediate_size", vision->intermediate_size);
  in.required("vision_config.patch_size", vision->patch_size);
  in.required("vision_config.downsample_ratio", vision->downsample_ratio);
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text) {
  ASSIGN_OR_RETURN(const json::value document, parse_json_file(text, kLimits));
  if (!document.is_object()) {
    return Error{Code::kCorrupt, format("found ", describe(&document), ", expected an object")};
  }
  const json::object& root = document.get_object();
  const json::value* nested = root.if_contains("text_config");
  if (nested != nullptr && !nested->is_object()) {
    return Error{Code::kInvalidArgument,
                 format("text_config: found ", describe(nested), ", expected an object")};
  }

  ModelConfig config;
  Reader top(root, "");
  Reader fields(nested == nullptr ? root : nested->get_object(),
                nested == nullptr ? "" : "text_config.");
  // The kind of model first: another model's config would fail on any field.
  top.constant("model_type", std::string("deepseek_v41"));
  top.constant("architectures", std::vector<std::string>{"DeepseekV41ForCausalLM"});
  if (nested != nullptr) fields.constant("model_type", std::string("deepseek_v41_text"));
  top.constant("tie_word_embeddings", false);
  top.optional("bos_token_id", config.bos_token_id);
  top.optional("eos_token_id", config.eos_token_id);
  top.optional("pad_token_id", config.pad_token_id);
  top.optional_token("image_token_id", config.image_token_id);
  read_quantization(top, config.quantization_config);
  read_vision(top, config.vision_config);
  RETURN_IF_ERROR(top.status());
  read_constants(fields);
  read_text(fields, config);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(complete(config));
  return config;
}

}  // namespace millrace
