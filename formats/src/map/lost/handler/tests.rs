use super::*;
use std::path::Path;

#[test]
fn a_line_names_the_file_that_holds_an_address() {
    let bytes = vec![0_u8; 100];
    let region = MappedRegion::add(Path::new("/models/a\u{1b}.htz"), &bytes);
    let other = MappedRegion::add(Path::new(&"ü".repeat(MAX_NAME_BYTES)), &bytes[..0]);
    let at = bytes.as_ptr() as usize;
    assert!(find_region(at + 99).is_some_and(|found| std::ptr::eq(found, region)));
    let mut line = [0; MAX_NAME_BYTES + 256];
    let length = write_line("htc", region, &mut line);
    let line = std::str::from_utf8(&line[..length]).unwrap();
    assert!(
        line.starts_with("htc: error: /models/a\\u{1b}.htz: the file"),
        "{line}"
    );
    assert!(line.ends_with("meanwhile\n"), "{line}");
    assert_eq!(other.length.load(Ordering::Relaxed), MAX_NAME_BYTES);
    region.remove();
    other.remove();
    assert!(find_region(at + 99).is_none());
}
