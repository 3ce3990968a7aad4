use htc_loader::kv::KvType;

use super::*;

#[test]
fn session_memory_follows_from_the_shapes() {
    let hyper = HyperParameters {
        architecture: "llama".to_owned(),
        name: None,
        vocabulary: 1000,
        context: 4096,
        width: 64,
        layers: 4096,
        heads: 256,
        kv_heads: 256,
        head_size: 4096,
        ffn: 128,
        norm_epsilon: 1e-5,
        rope_theta: 1e4,
        rope_dimensions: 64,
        rope_linear_scale: 1.0,
        forward: Default::default(),
    };
    let kv = 2 * 2 * 4096 * (1 << 20) * 100;
    let found = session_bytes(&hyper, 100, 2, KvType::F16);
    assert!((kv..kv + (64 << 20)).contains(&found), "{found}");
    let wide = session_bytes(&hyper, 100, 2, KvType::F32);
    assert_eq!(wide - found, kv);
    assert_eq!(session_bytes(&hyper, usize::MAX, 2, KvType::F32), u64::MAX);
}

#[test]
fn parses_proc_status() {
    let status = "Name:\thtc\nVmHWM:\t  2048 kB\nVmRSS:\t 1900 kB\nRssAnon:\t     100 kB\n\
                      RssFile:\t    1800 kB\nRssShmem:\t       0 kB\n";
    let expected = ResidentMemory {
        peak: 2048 << 10,
        mapped: 1800 << 10,
        anonymous: 100 << 10,
    };
    assert_eq!(parse(status), Some(expected));
    assert_eq!(parse("VmHWM:\t 1 kB\n"), None);
    assert_eq!(parse(&status.replace("2048 kB", "many kB")), None);
}

#[cfg(target_os = "linux")]
#[test]
fn some_memory_is_available() {
    let found = available().unwrap();
    assert!(found > 1 << 20, "{found}");
}

#[cfg(target_os = "linux")]
#[test]
fn watch_records_temporary_allocations() {
    let peak = PeakMemory::default();
    let watch = peak.watch();
    let written = std::hint::black_box(vec![1_u8; 96 << 20]);
    thread::sleep(3 * SAMPLE_INTERVAL);
    drop(written);
    drop(watch);
    let seen = peak.bytes().unwrap();
    assert!(seen >= 96 << 20, "{seen}");
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_written_is_counted() {
    let before = resident().unwrap();
    let written = std::hint::black_box(vec![1_u8; 64 << 20]);
    let after = resident().unwrap();
    assert!(
        after.anonymous >= before.anonymous + (60 << 20),
        "{before:?} {after:?}"
    );
    assert!(after.peak >= after.anonymous);
    drop(written);
}

#[test]
fn page_cache_of_a_control_group_is_available() {
    let folder = tempfile::tempdir().unwrap();
    let group = |path: &str, files: &[(&str, &str)]| {
        let group = folder.path().join(path);
        std::fs::create_dir_all(&group).unwrap();
        for (name, text) in files {
            std::fs::write(group.join(name), text).unwrap();
        }
    };
    let statistics = "anon 5\nfile 90\ninactive_file 70\nactive_file 20\n";
    group("", &[("memory.max", "max\n"), ("memory.current", "900\n")]);
    group(
        "slice/job",
        &[
            ("memory.max", "200\n"),
            ("memory.current", "100\n"),
            ("memory.stat", statistics),
        ],
    );
    let available = |groups: &str| available_in_groups(folder.path(), groups);
    assert_eq!(available("0::/slice/job\n"), Some(190));
    // The limit of the slice counts as well.
    group(
        "slice",
        &[("memory.max", "150\n"), ("memory.current", "110\n")],
    );
    assert_eq!(available("0::/slice/job\n"), Some(40));
    assert_eq!(available("0::/elsewhere\n"), None);
    group("", &[("memory.max", "1000\n"), ("memory.stat", statistics)]);
    assert_eq!(available("0::/elsewhere\n"), Some(190));

    let statistics = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 10\n";
    group(
        "memory/docker/1",
        &[
            ("memory.limit_in_bytes", "100\n"),
            ("memory.usage_in_bytes", "90\n"),
            ("memory.stat", statistics),
        ],
    );
    let groups = "12:cpu,cpuacct:/docker/1\n3:memory:/docker/1\n1:name=systemd:/docker/1\n";
    assert_eq!(available(groups), Some(50));
    assert_eq!(available(""), None);
}
