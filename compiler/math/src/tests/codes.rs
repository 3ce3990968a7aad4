use crate::FactoriseError;
use htc_formats::CodecError;
use htc_formats::bands::{
    Code, CodeKind, Codes, ColumnGroupWriter, ColumnGroups, QUAD, STATES, Trellis,
};

use crate::codes::{OutputBlock, QuantisationGuide, RowFeedback, Viterbi, encode_column_groups};
use crate::random::Rng;
use crate::{ErrorFeedback, SecondMoment, Weight};

pub(super) fn normal(seed: u64, count: usize, deviation: f64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..count)
        .map(|_| (rng.normal() * deviation) as f32)
        .collect()
}

fn squares(x: impl Iterator<Item = f32>) -> f64 {
    x.map(|x| f64::from(x).powi(2)).sum()
}

fn bits_above(bits: f64, error: f64) -> f64 {
    bits + 0.5 * error.log2()
}

#[test]
fn a_trellis_is_near_shannons_bound_on_gaussian_numbers() {
    let most = [[0.15, 0.17, 0.21, 0.28], [0.15, 0.17, 0.20, 0.26]];
    for code in Code::all().chain(Code::legacy()) {
        let (bits, Some(tables)) = (code.bits(), Trellis::for_code(code)) else {
            continue;
        };
        let mut viterbi = Viterbi::new(code).unwrap();
        let deviation = f64::from(tables.deviation);
        let (mut error, mut energy) = (0.0, 0.0);
        for seed in 0..12 {
            let x = normal(900 + seed, 1024, deviation);
            let mut states = vec![0; x.len()];
            viterbi.encode(&x, None, &mut states);
            error += squares(x.iter().zip(&states).map(|(x, &s)| x - viterbi.value(s)));
            energy += squares(x.iter().copied());
        }
        let found = bits_above(bits.into(), error / energy);
        let most = most[code.table_index()][usize::from(bits) - 2];
        assert!(found < most, "{code}: {found:.3} above");
    }
}

/// Every cycle of 15 bits, three weights of five.
#[test]
fn no_path_through_the_same_seam_is_better() {
    let mut viterbi = Viterbi::new(Code::trellis(5).unwrap()).unwrap();
    for seed in 0..20 {
        let x = normal(seed, 3, 40.0);
        let weights = [1.0, 0.25, 3.0];
        let mut states = [0; 3];
        viterbi.encode(&x, Some(&weights), &mut states);
        let cost = |states: [usize; 3]| {
            let of = |t: usize| {
                let d = x[t] - viterbi.value(states[t] as u16);
                d * d * weights[t]
            };
            f64::from(of(0)) + f64::from(of(1)) + f64::from(of(2))
        };
        let path =
            |circle: usize| [0, 5, 10].map(|at| (circle >> at | circle << (15 - at)) % STATES);
        let all = (0..1 << 15)
            .map(path)
            .filter(|p| p[0] == usize::from(states[0]));
        let least = all.map(cost).fold(f64::MAX, f64::min);
        let found = cost(states.map(usize::from));
        assert!(found <= least * (1.0 + 1e-5), "{seed}: {found} for {least}");
    }
}

#[test]
fn packed_paths_decode_to_their_values() {
    for bits in CodeKind::Trellis.bits() {
        let codes = Codes::uniform(Code::trellis(bits).unwrap(), 32).unwrap();
        for rows in [16, 48, 256] {
            let mut viterbi = Viterbi::new(codes[0]).unwrap();
            let mut packer = ColumnGroupWriter::new(&codes, rows);
            for row in 0..rows {
                packer.set_row_scale(CodeKind::Trellis, row, 1.0).unwrap();
            }
            let mut expected = vec![0.0; rows * 32];
            for col in 0..32 {
                packer.set_column_scale(col, 1.0).unwrap();
            }
            for quad in 0..8 {
                let x = normal(quad as u64, rows * QUAD, 35.0);
                let mut states = vec![0; x.len()];
                viterbi.encode(&x, None, &mut states);
                packer.set_trellis_states(0, 0, quad, &states);
                for (t, &state) in states.iter().enumerate() {
                    expected[t / QUAD * 32 + quad * QUAD + t % QUAD] = viterbi.value(state);
                }
            }
            let bytes = packer.finish();
            let bands = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            let mut row = [0.0; 32];
            for i in 0..rows {
                bands.decode_row(i, &mut row).unwrap();
                assert_eq!(row, expected[i * 32..][..32], "{bits} {rows} {i}");
            }
        }
    }
}

#[test]
fn weights_that_count_more_lose_less() {
    let mut viterbi = Viterbi::new(Code::trellis(2).unwrap()).unwrap();
    let x = normal(5, 1024, 36.0);
    let weights: Vec<f32> = (0..1024)
        .map(|i| if i % 4 == 0 { 8.0 } else { 1.0 })
        .collect();
    let mut error = |weights: Option<&[f32]>| {
        let mut states = vec![0; 1024];
        viterbi.encode(&x, weights, &mut states);
        let loss = |(x, &s): (&f32, &u16)| x - viterbi.value(s);
        squares(x.iter().zip(&states).step_by(4).map(loss))
    };
    let (plain, weighted) = (error(None), error(Some(&weights)));
    assert!(weighted < 0.7 * plain, "{weighted} for {plain}");
}

fn encoded(codes: &Codes, rows: usize, values: &[f32]) -> Result<Vec<u8>, FactoriseError> {
    let cols = codes.cols();
    encode_column_groups(
        codes,
        Weight { rows, cols, values },
        QuantisationGuide::default(),
    )
}

pub(super) fn loss(codes: &Codes, rows: usize, w: &[f32]) -> f64 {
    let bytes = encoded(codes, rows, w).unwrap();
    assert_eq!(bytes, encoded(codes, rows, w).unwrap());
    let bands = ColumnGroups::new(codes, rows, &bytes).unwrap();
    bands.check_scales().unwrap();
    let mut row = vec![0.0; codes.cols()];
    let mut error = 0.0;
    for (i, w) in w.chunks(codes.cols()).enumerate() {
        bands.decode_row(i, &mut row).unwrap();
        assert!(row.iter().all(|v| v.is_finite()));
        error += squares(w.iter().zip(&row).map(|(w, v)| w - v));
    }
    error / squares(w.iter().copied()).max(f64::MIN_POSITIVE)
}

#[test]
fn matrix_loss_matches_the_loss_of_the_code() {
    let (rows, cols) = (300, 96);
    let mut w = normal(9, rows * cols, 0.02);
    for (i, w) in w.iter_mut().enumerate() {
        *w *= [0.3, 1.0, 2.0][i / cols % 3] * [0.5, 1.5][i % 2];
    }
    for code in Code::all() {
        let codes = Codes::uniform(code, cols).unwrap();
        let above = bits_above(code.bits().into(), loss(&codes, rows, &w));
        let most = match code.kind() {
            CodeKind::Codebook => 0.85,
            CodeKind::Trellis => 0.40,
        };
        assert!(above < most, "{code}: {above:.3}");
    }
    let mixed: Codes = "2:l3x1,t3x1,l4x1".parse().unwrap();
    assert!(bits_above(3.3, loss(&mixed, rows, &w)) < 0.8);
}

#[test]
fn odd_matrices_have_codes_or_are_refused() {
    let codes: Codes = "2:l3x1,t3x1".parse().unwrap();
    assert_eq!(loss(&codes, 40, &[0.0; 40 * 64]), 0.0);
    let mut w = normal(3, 40 * 64, 1.0);
    w[64..128].fill(0.0);
    w.iter_mut().skip(40).step_by(64).for_each(|w| *w = 0.0);
    let bytes = encoded(&codes, 40, &w).unwrap();
    let mut row = [1.0; 64];
    let bands = ColumnGroups::new(&codes, 40, &bytes).unwrap();
    bands.decode_row(1, &mut row).unwrap();
    assert_eq!(row, [0.0; 64]);
    bands.decode_row(7, &mut row).unwrap();
    assert_eq!(row[40], 0.0);
    for (size, most) in [(3e3, 0.05), (1e-4, 0.05), (1e-7, 0.5)] {
        let w: Vec<f32> = normal(4, 40 * 64, size);
        assert!(loss(&codes, 40, &w) < most, "{size}");
    }
    assert!(loss(&codes, 40, &[0.25; 40 * 64]) < 0.02);
    w[70] = f32::NAN;
    let fault = encoded(&codes, 40, &w).unwrap_err();
    assert!(
        matches!(fault, FactoriseError::NoCode { row: 1, .. }),
        "{fault}"
    );
    w[70] = 1e30;
    let fault = encoded(&codes, 40, &w).unwrap_err();
    assert!(fault.to_string().contains("row 1 "), "{fault}");
    assert!(matches!(
        encoded(&codes, 40, &w),
        Err(FactoriseError::Codec(CodecError::Scale { .. }))
    ));
    assert!(encoded(&codes, 40, &w[1..]).is_err());
    assert!(Viterbi::new(Code::codebook(4).unwrap()).is_none());
}

fn moment(n: usize) -> Vec<f64> {
    let entry = |i: usize, j: usize| 0.9f64.powi(i.abs_diff(j) as i32);
    (0..n * n).map(|at| entry(at / n, at % n)).collect()
}

struct Lossy {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    /// `C [cols, cols]` and `H [rows, rows]`.
    inputs: Vec<f64>,
    outputs: Vec<f64>,
    damping: f64,
}

impl Lossy {
    fn new(rows: usize, cols: usize, outputs: Vec<f64>) -> Lossy {
        Lossy {
            rows,
            cols,
            values: normal(21, rows * cols, 0.05),
            inputs: moment(cols),
            outputs,
            damping: 0.01,
        }
    }

    fn feedback(&self) -> ErrorFeedback {
        let moment = SecondMoment {
            order: self.cols,
            values: &self.inputs,
        };
        ErrorFeedback::new(moment, self.damping).unwrap()
    }

    fn weight<'a>(&self, values: &'a [f32]) -> Weight<'a> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values,
        }
    }

    fn lost(&self, codes: &Codes, guide: QuantisationGuide<'_>) -> f64 {
        let (m, n) = (self.rows, self.cols);
        let bytes = encode_column_groups(codes, self.weight(&self.values), guide).unwrap();
        let bands = ColumnGroups::new(codes, m, &bytes).unwrap();
        let mut errors = vec![0.0; m * n];
        for (i, row) in errors.chunks_exact_mut(n).enumerate() {
            bands.decode_row(i, row).unwrap();
        }
        errors
            .iter_mut()
            .zip(&self.values)
            .for_each(|(v, w)| *v = w - *v);
        let product = |a: &[f64], b: &dyn Fn(usize, usize) -> f64, rows: usize, cols: usize| {
            let inner = a.len() / rows;
            let of = |at: usize| {
                (0..inner)
                    .map(|k| a[at / cols * inner + k] * b(k, at % cols))
                    .sum()
            };
            (0..rows * cols).map(of).collect::<Vec<f64>>()
        };
        let error = |i: usize, j: usize| f64::from(errors[i * n + j]);
        let he = product(&self.outputs, &error, m, n);
        let hec = product(&he, &|i, j| self.inputs[i * n + j], m, n);
        hec.iter()
            .zip(&errors)
            .map(|(a, e)| a * f64::from(*e))
            .sum()
    }
}

fn alone(n: usize) -> Vec<f64> {
    (0..n * n)
        .map(|at| f64::from(u8::from(at / n == at % n)))
        .collect()
}

#[test]
fn each_step_with_feedback_loses_less_of_the_outputs() {
    let lossy = Lossy::new(300, 96, alone(300));
    let feedback = lossy.feedback();
    let guide = |sweeps| QuantisationGuide {
        columns: Some(&feedback),
        sweeps,
        ..QuantisationGuide::default()
    };
    for (codes, most) in [
        ("1:l2x3", 0.2),
        ("1:l4x3", 0.21),
        ("2:t2x3", 0.435),
        ("2:t3x3", 0.393),
        ("2:t4x3", 0.39),
        ("2:t3x1,l4x1,t2x1", 0.443),
    ] {
        let codes: Codes = codes.parse().unwrap();
        let plain = lossy.lost(&codes, QuantisationGuide::default());
        let (fed, swept) = (lossy.lost(&codes, guide(0)), lossy.lost(&codes, guide(1)));
        let parts = [fed / plain, swept / plain];
        println!(
            "{codes}: {:.4} with feedback, {:.4} swept",
            parts[0], parts[1]
        );
        assert!(parts[0] < most, "{codes}: {parts:?}");
        if codes.contains_kind(CodeKind::Codebook) {
            assert!(swept < fed, "{codes}: {parts:?}")
        } else {
            assert_eq!(swept, fed, "{codes}")
        }
    }
}

fn few_directions(n: usize) -> Vec<f64> {
    let count = n / 5;
    let of = normal(8, n * count, 1.0);
    let dot = |i: usize, j: usize| -> f64 {
        let pairs = of[i * count..][..count].iter().zip(&of[j * count..]);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let own = |i: usize, j: usize| if i == j { 0.05 } else { 0.0 };
    let entry = |at: usize| dot(at / n, at % n) / count as f64 + own(at / n, at % n);
    (0..n * n).map(entry).collect()
}

#[test]
fn row_feedback_reduces_the_loss() {
    let rows = 300;
    let lossy = Lossy::new(rows, 64, few_directions(rows));
    let feedback = lossy.feedback();
    let lower = |order: usize, first: usize| -> Vec<f32> {
        let row = |i: usize| (0..=i).map(move |j| (first + i) * rows + first + j);
        let all = (0..order).flat_map(row);
        all.map(|at| lossy.outputs[at] as f32).collect()
    };
    let whole = [(0, lower(rows, 0))];
    let parts = [(0, lower(256, 0)), (256, lower(44, 256))];
    let of = |blocks: &[(usize, Vec<f32>)]| {
        let blocks: Vec<OutputBlock<'_>> = blocks
            .iter()
            .map(|(first, lower)| OutputBlock {
                first: *first,
                order: if blocks.len() == 1 {
                    rows
                } else {
                    [256, 44][usize::from(*first > 0)]
                },
                lower,
            })
            .collect();
        RowFeedback::new(&blocks, 0.01).unwrap()
    };
    let (whole, parts) = (of(&whole), of(&parts));
    for codes in ["1:l3x2", "2:t2x2", "2:t4x2", "2:t3x1,l4x1"] {
        let codes: Codes = codes.parse().unwrap();
        let lost = |rows: Option<&RowFeedback>| {
            lossy.lost(
                &codes,
                QuantisationGuide {
                    columns: Some(&feedback),
                    rows,
                    sweeps: 1,
                },
            )
        };
        let one_sided = lost(None);
        let found = [
            lost(Some(&whole)) / one_sided,
            lost(Some(&parts)) / one_sided,
        ];
        println!("{codes}: {:.4} whole, {:.4} in parts", found[0], found[1]);
        assert!(found[0] < 0.32 && found[1] < 0.45, "{codes}: {found:?}");
    }
}

#[test]
fn rows_that_count_more_lose_less() {
    let rows = 64;
    let lossy = Lossy::new(rows, 32, alone(rows));
    let count = |row: usize| if row.is_multiple_of(4) { 10.0 } else { 1.0 };
    let counted = Lossy {
        outputs: (0..rows * rows)
            .map(|at| lossy.outputs[at] * count(at / rows))
            .collect(),
        ..Lossy::new(rows, 32, Vec::new())
    };
    let of_rows = RowFeedback::from_weights((0..rows).map(|row| count(row) as f32).collect());
    let codes: Codes = "2:t2x1".parse().unwrap();
    let guide = QuantisationGuide {
        rows: Some(&of_rows),
        ..QuantisationGuide::default()
    };
    let [plain, weighed] =
        [QuantisationGuide::default(), guide].map(|guide| counted.lost(&codes, guide));
    println!("{:.4}", weighed / plain);
    assert!(weighed < 0.6 * plain, "{weighed} {plain}");
    assert!(lossy.lost(&codes, guide) > lossy.lost(&codes, QuantisationGuide::default()));
}

fn of_width(cols: usize) -> Vec<Codes> {
    let code = [
        Code::codebook(2),
        Code::codebook(4),
        Code::trellis(2),
        Code::trellis(3),
    ];
    let [two, four, short, long] = code.map(Result::unwrap);
    let last = |first: Code, last: Code| {
        let mut codes = vec![first; cols.div_ceil(32)];
        codes[cols.div_ceil(32) - 1] = last;
        codes
    };
    let all = [
        last(two, two),
        last(long, long),
        last(four, short),
        last(short, four),
    ];
    all.map(|codes| Codes::new(codes, cols).unwrap()).to_vec()
}

#[test]
fn padded_column_group_loses_as_much_as_whole_ones() {
    let rows = 200;
    let whole: Vec<f64> = of_width(192)
        .iter()
        .map(|codes| loss(codes, rows, &normal(3, rows * 192, 0.05)))
        .collect();
    for cols in [31, 33, 70, 172, 190] {
        let w = normal(3, rows * cols, 0.05);
        for (codes, whole) in of_width(cols).iter().zip(&whole) {
            let found = loss(codes, rows, &w);
            let same = codes.uniform_code().is_some() && cols > 32;
            println!("{codes}: {found:.5}, {whole:.5} of 192 columns");
            assert!(found < 1.03 * whole || !same, "{codes}: {found} {whole}");
            let bytes = encoded(codes, rows, &w).unwrap();
            let last = codes.len() - 1;
            let padding = codes.padding();
            let bands = ColumnGroups::new(codes, rows, &bytes).unwrap();
            let of_quad = bands.tile_bytes(0, last).len() / 8;
            match bands.column_scales(last) {
                Some(scales) => {
                    assert_eq!(scales[32 - padding..], vec![0.0; padding]);
                    let quads = padding / QUAD * of_quad;
                    let streams = &bands.tile_bytes(0, last)[8 * of_quad - quads..];
                    assert!(streams.iter().all(|byte| *byte == 0), "{codes}");
                }
                None => {
                    let mut integers = vec![0; 13 * 512];
                    bands.unpack_tile(0, last, 0..13, &mut integers);
                    let least = integers.iter().map(|v| v.unsigned_abs()).min().unwrap();
                    let quads = integers.chunks(64).enumerate();
                    let padded = quads.filter(|(at, _)| at % 8 >= (32 - padding).div_ceil(QUAD));
                    let mut padded = padded.flat_map(|(_, quad)| quad);
                    assert!(padded.all(|v| v.unsigned_abs() == least), "{codes}");
                }
            }
        }
    }
    let w = normal(5, rows, 0.05);
    for codes in of_width(1) {
        assert!(loss(&codes, rows, &w) < 0.2, "{codes}");
    }
}

fn with_zeros(narrow: &Lossy, wide: usize) -> Lossy {
    let (rows, cols) = (narrow.rows, narrow.cols);
    let place = |at: usize| (at / wide, at % wide);
    let value = |(row, col): (usize, usize)| {
        if col < cols {
            narrow.values[row * cols + col]
        } else {
            0.0
        }
    };
    let input = |(i, j): (usize, usize)| {
        if i.max(j) < cols {
            narrow.inputs[i * cols + j]
        } else {
            0.0
        }
    };
    Lossy {
        rows,
        cols: wide,
        values: (0..rows * wide).map(place).map(value).collect(),
        inputs: (0..wide * wide).map(place).map(input).collect(),
        outputs: narrow.outputs.clone(),
        damping: narrow.damping * wide as f64 / cols as f64,
    }
}

#[test]
fn padding_is_no_worse_than_columns_of_zeros() {
    let (rows, cols, wide) = (96, 172, 192);
    let outputs = few_directions(rows);
    let lower = (0..rows).flat_map(|i| (0..=i).map(move |j| i * rows + j));
    let lower: Vec<f32> = lower.map(|at| outputs[at] as f32).collect();
    let block = OutputBlock {
        first: 0,
        order: rows,
        lower: &lower,
    };
    let along_rows = RowFeedback::new(&[block], 0.01).unwrap();
    for (codes, of_zeros) in of_width(cols).iter().zip(of_width(wide)) {
        let mut sums = [[0.0; 2]; 3];
        for seed in 0..6 {
            let narrow = Lossy {
                values: normal(seed, rows * cols, 0.05),
                ..Lossy::new(rows, cols, outputs.clone())
            };
            let zeros = with_zeros(&narrow, wide);
            for (i, (of, codes)) in [(&narrow, codes), (&zeros, &of_zeros)]
                .into_iter()
                .enumerate()
            {
                let feedback = of.feedback();
                for (sums, [columns, rows]) in
                    sums.iter_mut().zip([[false; 2], [true, false], [true; 2]])
                {
                    let guide = QuantisationGuide {
                        columns: columns.then_some(&feedback),
                        rows: rows.then_some(&along_rows),
                        sweeps: 1,
                    };
                    sums[i] += of.lost(codes, guide);
                }
            }
        }
        for (step, [padded, zeros]) in sums.iter().enumerate() {
            println!("{codes}: {padded:.5}, with zeros {zeros:.5}");
            let most = if codes.contains_kind(CodeKind::Trellis) {
                1.15
            } else {
                1.03
            };
            assert!(*padded < most * zeros, "{codes}: {sums:?}");
            if step > 0 {
                assert!(*padded < 0.75 * sums[step - 1][0], "{codes}: {sums:?}");
            }
        }
    }
}

#[test]
fn rotation_does_not_increase_the_loss_of_normal_numbers() {
    for cols in [96, 100] {
        let mut lossy = Lossy::new(256, cols, alone(256));
        lossy.inputs = few_directions(cols);
        let feedback = lossy.feedback();
        let fed = QuantisationGuide {
            columns: Some(&feedback),
            ..QuantisationGuide::default()
        };
        for code in [Code::codebook(4), Code::trellis(2), Code::trellis(3)] {
            let codes = Codes::uniform(code.unwrap(), cols).unwrap();
            let rotated = codes.with_rotation();
            for guide in [QuantisationGuide::default(), fed] {
                let ratio = lossy.lost(&rotated, guide) / lossy.lost(&codes, guide);
                assert!((0.85..1.15).contains(&ratio), "{rotated}: {ratio}");
            }
        }
    }
}

#[test]
fn rotation_reduces_the_loss_with_outliers() {
    let mut lossy = Lossy::new(256, 64, alone(256));
    lossy.inputs = alone(64);
    for (at, weight) in lossy.values.iter_mut().enumerate() {
        if at % 37 == 0 {
            *weight *= 12.0;
        }
    }
    let codes = Codes::uniform(Code::codebook(3).unwrap(), 64).unwrap();
    let plain = lossy.lost(&codes, QuantisationGuide::default());
    let rotated = lossy.lost(&codes.with_rotation(), QuantisationGuide::default());
    assert!(rotated < 0.8 * plain, "{}", rotated / plain);
}
