#!/usr/bin/env bash
# Prints folders for LD_LIBRARY_PATH, with colons between them, of NVRTC's library, cuBLAS' and cuSOLVER's: of each that the
# system does not find by itself, and that is found. Fails where there is no NVRTC.
set -euo pipefail
known=$(ldconfig -p 2>/dev/null || true)
IFS=: read -ra paths <<<"${LD_LIBRARY_PATH:-}"
kept=${HTC_NVRTC:-${XDG_CACHE_HOME:-$HOME/.cache}/htc/nvrtc-13.0}

# Whether a folder has a library.
has() {
  compgen -G "$1/lib$2.so*" >/dev/null
}

# Whether the system finds a library by itself.
is_found() {
  [[ $known != *"lib$1.so"* ]] || return 0
  local path
  for path in "${paths[@]}"; do
    [ -z "$path" ] || ! has "$path" "$1" || return 0
  done
  return 1
}

# CUDA's own folders, the newest first of those with a version; packages of the python3 that is there.
places=(/usr/local/cuda/lib64)
while read -r place; do
  places+=("$place")
done < <(compgen -G "/usr/local/cuda?*/lib64" | sort -rV)
while read -r place; do
  places+=("$place"/{cu13,cuda_nvrtc,cublas,cusolver}/lib)
done < <(python3 -c '
import importlib.util
spec = importlib.util.find_spec("nvidia")
print(*(spec.submodule_search_locations or [] if spec else []), sep="\n")' 2>/dev/null)

folders=()
# Takes the first folder that has a library.
take() {
  local place
  ! is_found "$1" || return 0
  for place in "${places[@]}"; do
    if [ -n "$place" ] && has "$place" "$1"; then
      [[ ":$(join):" == *":$place:"* ]] || folders+=("$place")
      return 0
    fi
  done
  return 1
}
join() {
  local IFS=:
  echo "${folders[*]}"
}

# Who needs these says so.
take cublas || true
take cusolver || true
if ! take nvrtc; then
  if ! compgen -G "$kept/nvidia/*/lib/libnvrtc.so*" >/dev/null; then
    # What an earlier try left is not whole.
    rm -rf "$kept.unfinished"
    # Where there is no network it is soon known: few tries, none of them long, and an end to all of them.
    timeout 120 python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --timeout 5 \
      --retries 1 --target "$kept.unfinished" 'nvidia-cuda-nvrtc==13.0.*' >&2 && rm -rf "$kept" && mv "$kept.unfinished" "$kept" || true
  fi
  places=("$kept"/nvidia/*/lib)
  take nvrtc || missing=1
fi
join
[ -z "${missing:-}" ]
