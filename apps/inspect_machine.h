#pragma once

// What `inspect --machine` says: what this machine has, what the program chooses of it, and what
// cannot be tried here.

#include <cstdint>
#include <string>

#include "chat/json_writer.h"
#include "kernels/kernels.h"

namespace millrace {

std::string machine_text();
void write_machine(JsonWriter& json);  // members of an open object

// Of a table as it answers on this machine.
std::string numerics_id_here(const KernelTable& table);

std::string grouped(int64_t number);  // 15986756 -> "15,986,756"

}  // namespace millrace
