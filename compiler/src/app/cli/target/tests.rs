use super::*;

#[test]
fn cache_parses_gpu_or_size() {
    assert_eq!(parse_cache("rtx 4090"), Ok(72 << 20));
    assert_eq!(parse_cache("6MiB"), Ok(6 << 20));
    assert!(parse_cache("voodoo").is_err_and(|e| e.contains("rtx-4090")));
}
