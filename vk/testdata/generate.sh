#!/bin/sh
# generate.sh compiles the kernels of the tests; run it after changing one. GLSLC
# is the compiler. shape13 is shape.comp for Vulkan 1.3, whose SPIR-V states the
# workgroup size in another way.
set -eu
cd "$(dirname "$0")"
glslc=${GLSLC:-glslc}
for kernel in axpy gate spin shape shared; do
	$glslc --target-env=vulkan1.2 -O0 "$kernel.comp" -o "$kernel.spv"
done
$glslc --target-env=vulkan1.3 -O0 shape.comp -o shape13.spv
