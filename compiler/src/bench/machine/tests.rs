use super::*;

#[test]
fn parses_proc_stat_files() {
    let own = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 30 10 5 5 20 0 1 0 100 0 0";
    let before = parse("cpu  100 10 50 900 20 5 5 10 0 0\ncpu0 1\n", own).unwrap();
    assert_eq!(
        (before.all, before.busy, before.stolen, before.this_process),
        (1100, 170, 10, 50)
    );
    let own = own.replace(" 30 10 ", " 60 20 ");
    let after = parse("cpu  160 10 70 1000 20 5 5 30 0 0\n", &own).unwrap();
    // Of 200 ticks 80 were busy, 40 of them by this process, and 20 stolen.
    let load = before.until(after).unwrap();
    assert_eq!((load.others, load.stolen), (0.2, 0.1));
    assert_eq!(before.until(before), None);
    for damaged in ["", "cpu 1 2", "mem 1 2 3 4 5 6 7 8"] {
        assert_eq!(parse(damaged, &own), None, "{damaged}");
    }
    assert_eq!(parse("cpu  1 1 1 1 1 1 1 1\n", "7 (a) S 1"), None);
    assert_eq!(processor("x\nmodel name\t: A b\n").as_deref(), Some("A b"));
    assert_eq!(processor("model name\t:\n"), None);
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_has_ticks_and_cores() {
    assert!(Ticks::now().is_some());
    assert!(Machine::detect().cores > 0);
}
