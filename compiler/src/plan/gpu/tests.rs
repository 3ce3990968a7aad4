use super::*;

#[test]
fn gpus_are_sorted_and_found_by_name() {
    assert!(ALL.windows(2).all(|pair| pair[0].name < pair[1].name));
    for gpu in &ALL {
        assert_eq!(find_by_name(gpu.name), Ok(gpu));
        assert!((1 << 20..=256 << 20).contains(&gpu.l2_bytes), "{gpu:?}");
        assert!((1e11..=1e13).contains(&gpu.memory_bandwidth), "{gpu:?}");
    }
    assert_eq!(
        find_by_name("NVIDIA GeForce RTX 4090").map(|g| g.l2_bytes),
        Ok(75_497_472)
    );
    let error = find_by_name("voodoo 2").unwrap_err();
    assert!(error.contains("rtx-4090") && !error.contains('\n'));
}
