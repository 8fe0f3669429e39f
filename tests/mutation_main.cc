// The kernels' tests with one deliberate mistake in the kernels: kernels_test MUTATION
// [GoogleTest arguments]. Without a name nothing is wrong.

#include <gtest/gtest.h>

#include "kernels/mutation.h"

namespace millrace {
MutationName active_mutation = "";
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) millrace::active_mutation = argv[1];
  return RUN_ALL_TESTS();
}
