#!/usr/bin/env bash
# Prints the folder of NVRTC's library, or nothing where the system finds one by itself; fails where there is none.
set -euo pipefail
if ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so'; then
  exit 0
fi
IFS=: read -ra paths <<<"${LD_LIBRARY_PATH:-}"
for path in "${paths[@]}"; do
  if compgen -G "$path/libnvrtc.so*" >/dev/null; then
    exit 0
  fi
done
folder=${HTC_NVRTC:-${XDG_CACHE_HOME:-$HOME/.cache}/htc/nvrtc-13.0}
if ! compgen -G "$folder/nvidia/*/lib/libnvrtc.so*" >/dev/null; then
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$folder.unfinished" \
    'nvidia-cuda-nvrtc==13.0.*' >&2 || exit 1
  rm -rf "$folder"
  mv "$folder.unfinished" "$folder"
fi
compgen -G "$folder/nvidia/*/lib" | head -1
