use super::*;

const HEADER: usize = 64;

fn file(sections: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut names = vec![0];
    let mut data = Vec::new();
    let mut table = vec![0; 64];
    let mut entry = |name: u32, kind: u32, offset: usize, size: usize, link: u32| {
        table.extend([name, kind].iter().flat_map(|n| n.to_le_bytes()));
        table.extend([0; 16]);
        table.extend(
            [offset, size]
                .iter()
                .flat_map(|&n| (n as u64).to_le_bytes()),
        );
        table.extend(link.to_le_bytes());
        table.extend([0; 20]);
    };
    for (name, kind, bytes) in sections {
        let at = names.len() as u32;
        names.extend(name.as_bytes());
        names.push(0);
        let link = if *name == ".symtab" { 2 } else { 0 };
        entry(at, *kind, HEADER + data.len(), bytes.len(), link);
        if *kind != 8 {
            data.extend_from_slice(bytes);
        }
    }
    let at = HEADER + data.len();
    entry(0, 3, at, names.len(), 0);
    data.extend(names);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(0x28, 0);
    file.extend((HEADER as u64 + data.len() as u64).to_le_bytes());
    file.resize(0x3a, 0);
    let count = sections.len() as u16 + 2;
    file.extend([64, count, count - 1].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(data);
    file.extend(table);
    file
}

fn attribute(which: u8, numbers: &[u32]) -> Vec<u8> {
    let mut bytes = vec![4, which, 4 * numbers.len() as u8, 0];
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    bytes
}

fn kernel() -> Vec<u8> {
    let mut symbols = vec![0; 24];
    symbols.extend(1_u32.to_le_bytes());
    symbols.extend([0; 20 + 24]);
    let global = [
        attribute(attribute::REGCOUNT, &[2, 99]),
        attribute(attribute::REGCOUNT, &[1, 40]),
        attribute(attribute::FRAME_SIZE, &[1, 16]),
    ];
    let mut own = attribute(attribute::MAX_THREADS, &[256, 1, 1]);
    own.extend([3, attribute::CBANK_PARAM_SIZE, 48, 0]);
    own.extend([1, 0x37, 0, 0]);
    file(&[
        (".symtab", 2, &symbols),
        (".strtab", 3, b"\0norm\0"),
        (".nv.info", 0x7000_0000, &global.concat()),
        (".nv.info.norm", 0x7000_0000, &own),
        (".nv.shared.norm", 8, &[0; 1536]),
        (".nv.shared.reserved.0", 8, &[]),
    ])
}

#[test]
fn kernel_resources_are_read() {
    let expected = KernelResources {
        kernel: "norm".to_owned(),
        registers: 40,
        local_bytes: 16,
        static_shared_bytes: 512,
        max_threads: 256,
        argument_bytes: 48,
    };
    assert_eq!(read_kernel_resources(&kernel()).unwrap(), [expected]);
}

#[test]
fn truncated_or_corrupted_files_never_panic() {
    let whole = kernel();
    for length in 0..whole.len() {
        assert!(read_kernel_resources(&whole[..length]).is_err(), "{length}");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = read_kernel_resources(&bytes);
        }
    }
}
