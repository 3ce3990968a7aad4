//! Tables of the codes, trained once on Gaussian numbers by `compiler/math/examples/tables.rs`.

use super::{Code, CodeKind, STATES};

/// Current version of the tables, recorded in an artifact.
pub const TABLES_VERSION: u8 = 2;

/// The two tables of a trellis. The integer of a state is the sum of the entries for its low and
/// its high six bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Trellis {
    /// Entries for the low six bits, the newest.
    pub low: [i8; 64],
    /// Entries for the high six bits.
    pub high: [i8; 64],
    /// Standard deviation of the training data, in units of the integers.
    pub deviation: f32,
    /// Equivalent tables for the lowest, middle and highest four bits, for look-ups in one
    /// instruction; absent in version 1.
    pub nibbles: Option<[[i8; 16]; 3]>,
}

impl Trellis {
    /// Returns the tables of a code, or `None` for a codebook.
    pub fn for_code(code: Code) -> Option<&'static Trellis> {
        match code.kind() {
            CodeKind::Codebook => None,
            CodeKind::Trellis => {
                let bits = usize::from(code.bits()).checked_sub(2)?;
                TRELLIS_TABLES.get(code.table_index())?.get(bits)
            }
        }
    }

    /// Builds tables that are sums: entries for bits 0 to 3 of a state, for bits 4 and 5, 6 and 7,
    /// and 8 to 11.
    const fn from_nibbles(
        lowest: [i8; 16],
        [fourth, sixth]: [[i8; 4]; 2],
        highest: [i8; 16],
        deviation: f32,
    ) -> Trellis {
        let mut trellis = Trellis {
            low: [0; 64],
            high: [0; 64],
            deviation,
            nibbles: None,
        };
        let mut i = 0;
        while i < 64 {
            trellis.low[i] = lowest[i % 16] + fourth[i / 16];
            trellis.high[i] = sixth[i % 4] + highest[i / 4];
            i += 1;
        }
        let mut middle = [0; 16];
        i = 0;
        while i < 16 {
            middle[i] = fourth[i % 4] + sixth[i / 4];
            i += 1;
        }
        trellis.nibbles = Some([lowest, middle, highest]);
        trellis
    }

    /// Returns the integer of a state, at most 127 in magnitude.
    pub const fn value(&self, state: usize) -> i8 {
        let state = state % STATES;
        self.low[state % 64] + self.high[state / 64]
    }
}

/// Magnitudes of codebooks of 2 to 7 bits, ascending. The highest bit of a code is the sign, the
/// others are the index. The codebook of 8 bits is the integers -127 to 127.
pub static CODEBOOKS: [&[i8]; 6] = [
    // Bits above Shannon's bound, without scales: 0.370.
    &[37, 127],
    // 0.354.
    &[14, 42, 77, 127],
    // 0.296.
    &[6, 19, 32, 46, 61, 78, 99, 127],
    // 0.290.
    &[
        3, 10, 17, 24, 31, 38, 45, 52, 59, 66, 74, 82, 90, 101, 114, 127,
    ],
    // 0.349.
    &[
        2, 6, 9, 13, 17, 20, 24, 28, 32, 36, 40, 43, 47, 51, 55, 59, 62, 66, 70, 74, 78, 81, 85,
        89, 93, 97, 101, 105, 110, 116, 121, 127,
    ],
    // 0.387.
    &[
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46,
        48, 50, 52, 54, 56, 58, 60, 62, 64, 66, 68, 70, 71, 73, 76, 77, 79, 81, 83, 85, 87, 89, 91,
        93, 95, 97, 99, 101, 103, 105, 107, 109, 111, 113, 116, 117, 119, 122, 124, 127,
    ],
];

/// Returns the integer of a codebook code.
pub fn codebook_value(bits: u8, code: u8) -> i8 {
    match CODEBOOKS.get(usize::from(bits).wrapping_sub(2)) {
        Some(table) => {
            let magnitude = table[usize::from(code) % table.len()];
            let negative = usize::from(code) / table.len() % 2 == 1;
            if negative { -magnitude } else { magnitude }
        }
        // -128 has no positive counterpart.
        None => code.cast_signed().max(-127),
    }
}

/// Trellis tables of 2 to 5 bits, for each version.
pub static TRELLIS_TABLES: [[Trellis; 4]; TABLES_VERSION as usize] = [VERSION_1, VERSION_2];

const VERSION_1: [Trellis; 4] = [
    // Bits above Shannon's bound on Gaussian numbers: 0.126.
    Trellis {
        low: [
            58, -8, 27, 14, -47, 19, 7, -22, -18, 20, 53, -33, -17, 3, 4, -33, -36, 6, 33, -16, 33,
            -18, 7, 53, 1, -18, -41, 32, -28, -42, -1, 17, 34, -40, -15, 7, -6, 25, -60, 35, 29,
            -5, -1, -24, 16, 12, 15, -21, 9, -13, 36, -3, -27, -64, -8, -43, 10, -27, 48, 20, -9,
            47, -9, 23,
        ],
        high: [
            14, -36, -4, 39, -18, -24, 3, -3, 34, 8, -15, -35, 26, -30, 34, -22, 22, 0, 23, -11,
            -17, -6, -31, 23, 9, 35, -29, -19, -18, 7, 11, 2, -31, -12, 2, 10, 19, 23, -4, -15,
            -11, -48, -3, 44, 3, 31, -49, 10, -3, 34, -37, -45, -57, 17, 34, 26, 62, -6, 37, 14,
            55, -1, -20, -41,
        ],
        deviation: 37.1519,
        nibbles: None,
    },
    // 0.153.
    Trellis {
        low: [
            61, -2, 29, 17, -38, 9, -6, -19, -13, 26, 52, -44, -31, -1, 11, -27, -27, -4, 20, -13,
            30, 4, 11, 46, -3, -15, -69, 33, -29, -48, 5, 14, 39, -27, -13, 1, 8, 19, -45, 29, 25,
            2, -8, -26, -1, 10, 13, -16, 16, -6, 30, 7, -36, -55, -18, -33, 11, -23, 35, 16, -2,
            55, -6, 23,
        ],
        high: [
            3, -27, 16, 29, -31, -24, 5, 1, 35, 5, -8, -37, 40, -11, 37, -25, 19, -11, 4, -3, -21,
            -3, -22, 25, 9, 20, -13, -12, -10, 3, 1, -6, -28, -11, -2, 3, 18, 10, -19, 12, -13,
            -40, -24, 20, 6, 16, -40, -14, -4, 34, -46, -24, -47, 24, 18, 16, 57, 7, 42, 13, 28,
            -3, -11, -36,
        ],
        deviation: 32.2211,
        nibbles: None,
    },
    // 0.188.
    Trellis {
        low: [
            62, 6, 30, 11, -38, -1, -7, -12, -19, 22, 44, -47, -25, 0, 16, -33, -17, -4, 22, -11,
            17, 12, 3, 44, 6, -7, -65, 31, -36, -47, 10, 0, 38, -32, -3, 5, 5, 23, -45, 31, 18, 11,
            -9, -22, -2, 14, 3, -15, 9, -6, 29, 13, -41, -53, -20, -30, 18, -14, 47, 5, 1, 37, -6,
            24,
        ],
        high: [
            1, -21, 5, 31, -29, -12, 0, 3, 39, 12, -7, -31, 31, -10, 31, -24, 13, -5, 12, 6, -16,
            -4, -10, 20, 8, 18, -24, -14, -11, -3, 3, -4, -22, -15, -4, -1, 16, 8, -21, 10, -3,
            -48, -17, 24, 4, 10, -29, -10, -6, 22, -52, -19, -40, 2, 21, -8, 61, 2, 44, 14, 24, 3,
            -14, -42,
        ],
        deviation: 30.8312,
        nibbles: None,
    },
    // 0.243.
    Trellis {
        low: [
            -40, -26, -31, 15, -19, 4, 6, 40, 8, -3, -2, -13, 22, 8, -7, -22, 11, -10, -59, 0, 2,
            -5, -50, 27, -10, -6, 15, 18, -16, -13, 10, 4, 12, 1, -30, -1, -34, -18, -11, -20, 31,
            5, 24, 38, 8, 4, -14, -3, 71, -27, 7, 50, 10, 16, 15, 18, 3, 27, 21, -6, -23, 13, -38,
            -9,
        ],
        high: [
            11, 24, 10, 9, 4, 16, 14, -6, 19, 33, 30, -4, -3, -11, -7, -17, -12, -26, 25, -55, 6,
            1, 27, 11, 0, -20, -1, 28, 8, 20, 21, 0, 14, -19, 16, -39, -9, -43, 18, -12, -15, -33,
            -18, 18, 33, 13, 38, -23, -32, 4, -12, 46, 2, -8, -5, -15, -20, 5, 23, -30, -26, -2, 7,
            7,
        ],
        deviation: 28.5025,
        nibbles: None,
    },
];

const VERSION_2: [Trellis; 4] = [
    // Bits above Shannon's bound on Gaussian numbers: 0.130.
    Trellis::from_nibbles(
        [
            56, -30, -8, 19, -48, 31, 5, -8, -8, 6, 41, -32, -16, 31, 10, -50,
        ],
        [[-5, -1, 3, 4], [-5, -1, -3, 9]],
        [
            -13, 11, -56, 13, -25, -38, 46, -34, 44, -12, 13, -6, 10, 32, -14, 29,
        ],
        39.1865,
    ),
    // 0.154.
    Trellis::from_nibbles(
        [
            45, -2, 24, 15, -32, 5, -10, -19, -15, 4, 19, -48, -4, 11, 32, -24,
        ],
        [[-1, -2, 7, -4], [-9, 3, -16, 22]],
        [
            6, -3, -49, 45, -18, -36, 16, -11, 44, -22, -4, 6, 27, 17, -29, 26,
        ],
        34.3373,
    ),
    // 0.178.
    Trellis::from_nibbles(
        [
            53, 10, 23, 19, -42, -9, -16, -3, -11, 28, 36, -53, -23, 3, 16, -31,
        ],
        [[-9, 1, 14, -6], [1, 2, -12, 9]],
        [
            8, -11, -44, 36, -25, -34, 4, -6, 47, -1, 18, 21, -16, 28, -22, 12,
        ],
        32.5179,
    ),
    // 0.231.
    Trellis::from_nibbles(
        [
            50, -6, 16, 10, -27, 2, -9, -3, -12, 19, 25, -39, -17, 5, 7, -22,
        ],
        [[-6, 2, 11, -8], [0, -7, -12, 19]],
        [
            5, -6, -46, 34, -13, -30, -9, 10, 29, -16, 1, 15, 12, 25, -23, 20,
        ],
        27.1528,
    ),
];
