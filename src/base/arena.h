#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace millrace {

// Memory of one step: allocation moves a pointer, and everything is given back at once. It grows
// while steps get larger and then stays, so that a steady step never reaches the heap.
//
// Threading: one owner. Pointers are valid until the enclosing Scope (or reset()) ends.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `count` values at a 64-byte boundary, uninitialised.
  template <class T>
  T* allocate(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return static_cast<T*>(allocate_bytes(size_t(count) * sizeof(T)));
  }

  // Gives back, at its end, what was allocated after its start.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_, used_;
  };

  size_t reserved_bytes() const;

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kFirstBlock = size_t{1} << 20;
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t size;
  };
  void* allocate_bytes(size_t bytes);

  std::vector<Block> blocks_;
  size_t block_ = 0;  // the block in use: blocks_[block_], with used_ bytes taken
  size_t used_ = 0;
};

}  // namespace millrace
