#pragma once

namespace millrace {

// How the forward pass rounds. `kReference` follows the published inference: bf16 between
// operations, fp8 activations, fp8/nvfp4/mxfp4 keys. `kFp32` keeps the stored
// weights and neither rounds nor quantises anything else: the mode to compare mathematics in.
enum class Numerics { kReference, kFp32 };

}  // namespace millrace
