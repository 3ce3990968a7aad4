use super::*;

#[test]
fn every_source_file_is_listed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/cu");
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let units = UNITS.iter().map(|unit| format!("{}.cu", unit.name));
    let headers = HEADERS.iter().map(|header| header.name.to_owned());
    let mut listed: Vec<String> = units.chain(headers).collect();
    found.sort();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn includes_name_listed_headers() {
    for source in HEADERS.iter().chain(UNITS) {
        for line in source.text.lines() {
            let Some(rest) = line.trim().strip_prefix("#include ") else {
                continue;
            };
            let name = rest.trim_matches(['"', '<', '>']);
            let known = name == "emulate.h" || HEADERS.iter().any(|h| h.name == name);
            assert!(known, "{} includes {name}", source.name);
        }
    }
}
