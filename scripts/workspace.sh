# shellcheck shell=bash
# Sourced by the scripts that build: one choice of packages and features for all of them, since other
# features of a package mean that it and what depends on it are built again.
#
#     workspace COMMAND [ARGUMENTS]     cargo COMMAND for the whole workspace, with the features of the tests

workspace_features=()
# With a C++ compiler the kernels for GPUs are executed, too, by a GPU that the processor emulates.
if "${CXX:-c++}" --version >/dev/null 2>&1; then
  workspace_features=(--features htc/emulated,htc-tests/emulated,htc-tests/cuda,htc-loader/emulated,htc-kernels/emulated)
else
  workspace_features=(--features htc-tests/cuda)
fi

# As in the Makefile: with another value, or none, the program would be built again.
export HTC_COMMIT="${HTC_COMMIT-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}"

# Sub-commands of two words, as `nextest run`, count as one.
workspace() {
  local command=("$1")
  shift
  if [ "${command[0]}" = nextest ]; then command+=("$1") && shift; fi
  cargo "${command[@]}" --release --locked --workspace "${workspace_features[@]}" "$@"
}
