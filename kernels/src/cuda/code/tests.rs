use super::*;
use htc_formats::htz::Digest;

fn code(images: &[(u8, u8, CodeFormat)]) -> KernelCode {
    let images = images.iter().flat_map(|&(major, minor, form)| {
        UNITS.iter().map(move |unit| CodeImage {
            architecture: GpuArchitecture { major, minor },
            form,
            unit: unit.name.to_owned(),
            bytes: Vec::new(),
        })
    });
    KernelCode {
        sources: sources_digest(),
        compiler: String::new(),
        images: images.collect(),
    }
}

#[test]
fn nearest_lower_architecture_is_chosen() {
    use CodeFormat::{Cubin, Ptx};
    let code = code(&[
        (8, 0, Cubin),
        (8, 0, Ptx),
        (8, 9, Cubin),
        (9, 0, Cubin),
        (9, 0, Ptx),
        (12, 0, Cubin),
    ]);
    for (major, minor, expected) in [
        (8, 0, vec![(8, 0, Cubin), (8, 0, Ptx)]),
        (8, 6, vec![(8, 0, Cubin), (8, 0, Ptx)]),
        (8, 9, vec![(8, 9, Cubin), (8, 0, Ptx)]),
        (9, 0, vec![(9, 0, Cubin), (9, 0, Ptx)]),
        (10, 0, vec![(9, 0, Ptx)]),
        (12, 1, vec![(12, 0, Cubin), (9, 0, Ptx)]),
    ] {
        let found = compatible_images(&code, GpuArchitecture { major, minor }).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|images| {
                assert_eq!(images.len(), UNITS.len());
                let a = images[0].architecture;
                (a.major, a.minor, images[0].form)
            })
            .collect();
        assert_eq!(found, expected, "{major}.{minor}");
    }
}

#[test]
fn incompatible_code_is_reported() {
    let device = GpuArchitecture { major: 8, minor: 0 };
    let mut code = code(&[(9, 0, CodeFormat::Cubin), (9, 0, CodeFormat::Ptx)]);
    assert_eq!(
        compatible_images(&code, device).unwrap_err(),
        "the sealed ones are for sm_90"
    );
    code.sources = Digest::of_bytes(b"others");
    let error = compatible_images(&code, GpuArchitecture { major: 9, minor: 0 }).unwrap_err();
    assert!(error.contains("from other sources"), "{error}");
}

#[test]
fn code_missing_a_unit_is_rejected() {
    let device = GpuArchitecture { major: 9, minor: 0 };
    let mut code = code(&[(9, 0, CodeFormat::Cubin)]);
    code.images.pop();
    assert!(compatible_images(&code, device).is_err());
}
