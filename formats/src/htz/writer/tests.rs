use super::*;

#[test]
fn full_disk_error_names_the_remedy() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let error = io_error("write", Path::new("x.htz"), 12345, kind.into());
        let text = error.to_string();
        assert!(matches!(error, HtzError::DiskFull { .. }));
        assert_eq!(
            text,
            "no space left for x.htz (12345 bytes); free some or choose another disk"
        );
    }
    let error = io_error("write", Path::new("x.htz"), 1, ErrorKind::TimedOut.into());
    assert_eq!(error.to_string(), "cannot write x.htz: timed out");
}
