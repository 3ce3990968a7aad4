//! Column-group matrices: packing and reading by the rules of the specification.

use htc_formats::CodecError;
use htc_formats::bands::{
    CHUNK, CODEBOOK_UNIT, CODEBOOKS, Code, CodeKind, Codes, ColumnGroupWriter, ColumnGroups,
    GROUP_COLS, GROUP_ROWS, QUAD, QUADS_PER_GROUP, STATES, TILE_ROWS, TRELLIS_TABLES, Trellis,
    codebook_value,
};
use htc_formats::htz::Digest;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % n
    }
}

fn random(codes: &Codes, rows: usize, seed: u64) -> (Vec<u8>, Vec<i8>, Vec<f32>) {
    let mut random = Random(seed);
    let cols = codes.cols();
    let mut packer = ColumnGroupWriter::new(codes, rows);
    let (mut integers, mut factors) = (vec![0; rows * cols], vec![0.0; rows * cols]);
    let mut of_rows = [vec![0.0; rows], vec![0.0; rows]];
    for (kind, scales) in CodeKind::ALL.into_iter().zip(&mut of_rows) {
        for (row, scale) in scales
            .iter_mut()
            .enumerate()
            .filter(|_| codes.contains_kind(kind))
        {
            let asked = random.below(1000) as f32 / 700.0;
            *scale = packer.set_row_scale(kind, row, asked).unwrap();
            assert!((*scale - asked).abs() <= asked / 2048.0);
        }
    }
    for (band, code) in codes.iter().enumerate() {
        let bits = code.bits();
        let columns: Vec<f32> = match code.kind() {
            CodeKind::Codebook => Vec::new(),
            CodeKind::Trellis => (0..GROUP_COLS)
                .map(|c| {
                    let scale = random.below(1000) as f32 / 9000.0;
                    packer
                        .set_column_scale(band * GROUP_COLS + c, scale)
                        .unwrap()
                })
                .collect(),
        };
        for strip in 0..packer.tiles() {
            let padded = packer.tile_rows(strip);
            let mut put = |r: usize, c: usize, integer: i8, factor: f32| {
                let row = strip * TILE_ROWS + r;
                if row < rows && band * GROUP_COLS + c < cols {
                    integers[row * cols + band * GROUP_COLS + c] = integer;
                    factors[row * cols + band * GROUP_COLS + c] = factor;
                }
            };
            let of_row = |kind: usize, r: usize| of_rows[kind].get(strip * TILE_ROWS + r).copied();
            if code.kind() == CodeKind::Codebook {
                let scales: Vec<u8> = (0..padded).map(|_| random.below(64) as u8).collect();
                packer.set_codebook_scales(strip, band, &scales);
                for quad in 0..QUADS_PER_GROUP {
                    let codes: Vec<u8> = (0..padded * QUAD)
                        .map(|_| random.below(1 << bits) as u8)
                        .collect();
                    packer.set_codebook_codes(strip, band, quad, &codes);
                    for (i, &code) in codes.iter().enumerate() {
                        let (r, c) = (i / QUAD, i % QUAD);
                        let scale =
                            of_row(0, r).unwrap_or(0.0) * f32::from(scales[r]) * CODEBOOK_UNIT;
                        put(r, quad * QUAD + c, codebook_value(bits, code), scale);
                    }
                }
                continue;
            }
            for quad in 0..QUADS_PER_GROUP {
                let news: Vec<usize> = (0..padded * QUAD)
                    .map(|_| random.below(1 << bits) as usize)
                    .collect();
                let state = |t: usize| {
                    let of = |i: usize| news[(t + i) % news.len()] << (i * usize::from(bits));
                    (0..6).map(of).sum::<usize>() % 4096
                };
                let states: Vec<u16> = (0..news.len()).map(|t| state(t) as u16).collect();
                packer.set_trellis_states(strip, band, quad, &states);
                let table = Trellis::for_code(*code).unwrap();
                for (i, &state) in states.iter().enumerate() {
                    let (r, c) = (i / QUAD, quad * QUAD + i % QUAD);
                    let integer =
                        table.low[usize::from(state) % 64] + table.high[usize::from(state) / 64];
                    put(r, c, integer, of_row(1, r).unwrap_or(0.0) * columns[c]);
                }
            }
        }
    }
    (packer.finish(), integers, factors)
}

fn cases() -> Vec<(Codes, usize)> {
    let alone = Code::all().chain(Code::legacy());
    let alone = alone.map(|code| Codes::uniform(code, 64).unwrap());
    let mixed =
        ["1:l4x1,t3x1,l2x1", "2:t2x1,t5x1,l8x1,t4x2,l7x1"].map(|text| text.parse().unwrap());
    let padded = [
        "1:l5x1-31",
        "2:t3x1-1",
        "1:t4x1,l8x1-31",
        "2:t2x5,t3x1-20",
        "2:l7x9,t5x3-28",
    ];
    let padded = padded.map(|text| text.parse().unwrap());
    alone
        .chain(mixed)
        .chain(padded)
        .flat_map(|codes| [1, 16, 39, 256, 530].map(|rows| (codes.clone(), rows)))
        .collect()
}

#[test]
fn rows_are_the_products_of_scales_and_integers() {
    for (seed, (codes, rows)) in cases().into_iter().enumerate() {
        let (bytes, integers, factors) = random(&codes, rows, seed as u64);
        assert_eq!(bytes.len() as u64, codes.bytes(rows), "{codes} {rows}");
        let bands = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        bands.check_scales().unwrap();
        let mut row = vec![0.0; codes.cols()];
        for i in 0..rows {
            bands.decode_row(i, &mut row).unwrap();
            for (c, &found) in row.iter().enumerate() {
                let at = i * codes.cols() + c;
                let expected = factors[at] * f32::from(integers[at]);
                assert!(
                    found == expected,
                    "{codes} {rows} [{i}, {c}]: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn integers_are_arranged_for_products() {
    for (seed, (codes, rows)) in cases().into_iter().enumerate() {
        let (bytes, integers, _) = random(&codes, rows, seed as u64);
        let bands = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        for strip in 0..rows.div_ceil(TILE_ROWS) {
            let groups = Codes::tile_rows(rows, strip) / GROUP_ROWS;
            for range in [0..groups, groups - 1..groups, 0..0] {
                for band in 0..codes.len() {
                    let mut found = vec![0; range.len() * QUADS_PER_GROUP * CHUNK];
                    bands.unpack_tile(strip, band, range.clone(), &mut found);
                    for (i, &found) in found.iter().enumerate() {
                        let (chunk, within) = (i / CHUNK, i % CHUNK);
                        let r =
                            (range.start + chunk / QUADS_PER_GROUP) * GROUP_ROWS + within / QUAD;
                        let c = band * GROUP_COLS + chunk % QUADS_PER_GROUP * QUAD + within % QUAD;
                        let row = strip * TILE_ROWS + r;
                        if row < rows && c < codes.cols() {
                            assert_eq!(found, integers[row * codes.cols() + c]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tables_are_symmetric_and_their_sums_fit_a_byte() {
    for (bits, table) in (2..).zip(CODEBOOKS) {
        assert_eq!(table.len(), 1 << (bits - 1));
        assert!(table.is_sorted_by(|a, b| a < b) && table[0] > 0 && table.last() == Some(&127));
        for code in 0..1 << (bits - 1) {
            assert_eq!(
                codebook_value(bits, code),
                -codebook_value(bits, code | 1 << (bits - 1))
            );
        }
    }
    assert_eq!(
        [0, 5, 127, 128, 129, 255].map(|c| codebook_value(8, c)),
        [0, 5, 127, -127, -127, -1]
    );
    for (at, table) in TRELLIS_TABLES.as_flattened().iter().enumerate() {
        let most = |half: &[i8; 64]| half.iter().map(|v| i32::from(*v).abs()).max().unwrap();
        let sum = most(&table.low) + most(&table.high);
        assert!((100..=127).contains(&sum), "{sum}");
        assert!(table.deviation > 20.0 && table.deviation < 60.0);
        assert_eq!(table.nibbles.is_some(), at >= 4);
        for state in 0..STATES {
            let sum = |tables: [[i8; 16]; 3]| {
                let nibbles = tables.iter().zip([0, 4, 8]);
                nibbles.map(|(table, from)| table[state >> from & 15]).sum()
            };
            assert_eq!(
                table.nibbles.map_or(table.value(state), sum),
                table.value(state)
            );
        }
    }
}

/// Existing artifacts depend on them.
#[test]
fn tables_are_unchanged() {
    let digest = |values: Vec<i8>| {
        let bytes: Vec<u8> = values.into_iter().map(i8::cast_unsigned).collect();
        Digest::of_bytes(&bytes).to_string()
    };
    let levels =
        (2..=7).flat_map(|bits| (0..1_u8 << bits).map(move |code| codebook_value(bits, code)));
    assert_eq!(
        digest(levels.collect()),
        "33ea544ca904b3d753f68daa867db0490d97a000023509fad220b5727b6586d6"
    );
    let of_version = |tables: &[Trellis; 4]| {
        let values = tables
            .iter()
            .flat_map(|of| (0..STATES).map(|state| of.value(state)));
        digest(values.collect())
    };
    assert_eq!(
        TRELLIS_TABLES.each_ref().map(of_version),
        [
            "3544e0ea9606c23f226a23c4d0cd17ebc472b4262716522b823fe5d11ff5cf93",
            "fe528da75bc3124f27e186404db887b6dbc66715bdab2cc4a2c93116c14132d6",
        ]
    );
}

#[test]
fn wrong_lengths_rows_and_scales_are_refused_by_name() {
    let codes: Codes = "1:t2x1,l3x1".parse().unwrap();
    let (mut bytes, ..) = random(&codes, 40, 1);
    for length in [0, bytes.len() - 1] {
        let fault = ColumnGroups::new(&codes, 40, &bytes[..length]).unwrap_err();
        assert!(
            matches!(
                fault,
                CodecError::ColumnGroupLength {
                    rows: 40,
                    cols: 64,
                    ..
                }
            ),
            "{fault}"
        );
    }
    assert!(
        ColumnGroups::new(&codes, 41, &bytes).is_ok(),
        "rows are padded"
    );
    assert!(ColumnGroups::new(&codes, 49, &bytes).is_err());
    let bands = ColumnGroups::new(&codes, 40, &bytes).unwrap();
    assert!(
        bands.decode_row(40, &mut [0.0; 64]).is_err()
            && bands.decode_row(0, &mut [0.0; 63]).is_err()
    );
    for (at, said) in [
        (2 * 39, "row 39"),
        (96 + 2 * 7, "row 7"),
        (192 + 2 * 31, "column 31"),
    ] {
        let kept = [bytes[at], bytes[at + 1]];
        for not in [0x7c00_u16, 0xfc00, 0x7e01] {
            bytes[at..at + 2].copy_from_slice(&not.to_le_bytes());
            let bands = ColumnGroups::new(&codes, 40, &bytes).unwrap();
            let fault = bands.check_scales().unwrap_err().to_string();
            assert!(fault.contains(said) && fault.contains("finite"), "{fault}");
        }
        bytes[at..at + 2].copy_from_slice(&kept);
    }
    let mut packer = ColumnGroupWriter::new(&codes, 40);
    assert!(packer.set_row_scale(CodeKind::Codebook, 0, 1e6).is_err());
    assert!(packer.set_column_scale(0, f32::NAN).is_err());
}

#[test]
fn padding_columns_do_not_affect_rows() {
    let codes: Codes = "2:l3x1,t2x1-20".parse().unwrap();
    let (bytes, ..) = random(&codes, 40, 1);
    let rows = |bytes: &[u8]| {
        let bands = ColumnGroups::new(&codes, 40, bytes).unwrap();
        let mut row = vec![0.0; 44];
        let rows = (0..40).map(|i| {
            bands.decode_row(i, &mut row).unwrap();
            row.clone()
        });
        rows.collect::<Vec<_>>()
    };
    let padding = 192 + 2 * 12..192 + 2 * 32;
    let mut other = bytes.clone();
    for byte in &mut other[padding.clone()] {
        *byte ^= 1;
    }
    let place = codes.tile_range(40, 0, 1);
    let of_quad = place.len() / QUADS_PER_GROUP;
    for byte in &mut other[place.start + 3 * of_quad..place.end] {
        *byte ^= 0x5a;
    }
    assert!(rows(&other) == rows(&bytes));
    other[place.start + 2 * of_quad] ^= 1;
    assert!(rows(&other) != rows(&bytes));
    other[padding.start + 2 * 7 + 1] = 0x7c;
    let bands = ColumnGroups::new(&codes, 40, &other).unwrap();
    let fault = bands.check_scales().unwrap_err().to_string();
    assert!(
        fault.contains("column 51") && fault.contains("finite"),
        "{fault}"
    );
}
