//! Codebooks of the iq1, iq2 and iq3 formats.

/// The packed groups of all codebooks, in the order of the tables below, as in `gguf-py`: words of
/// 16 bits in hexadecimal, the first number of a group in the lowest bits.
const PACKED: &[u8] = include_bytes!("grids.hex");

/// Characters of a word and the space or end of line after it.
const WORD_LEN: usize = 5;

/// Words of all codebooks.
const WORDS: usize = 4608;

// Fails if the checkout converted line ends.
const _: () = assert!(PACKED.len() == WORDS * WORD_LEN);

const fn packed_word(index: usize) -> usize {
    let (mut word, mut i) = (0, index * WORD_LEN);
    while i < index * WORD_LEN + 4 {
        let digit = PACKED[i];
        let value = if digit > b'9' {
            digit - b'a' + 10
        } else {
            digit - b'0'
        };
        word = word << 4 | value as usize;
        i += 1;
    }
    word
}

/// Unpacks `N` groups of `LEN` codes from the word `first` on, and replaces codes by `numbers`.
const fn unpack<const LEN: usize, const N: usize, const CODES: usize>(
    first: usize,
    numbers: [i8; CODES],
) -> [[i8; LEN]; N] {
    let mut groups = [[0; LEN]; N];
    let mut i = 0;
    while i < N {
        let (word, mut place) = (packed_word(first + i), 0);
        while place < LEN {
            groups[i][place] = numbers[(word >> (16 / LEN * place)) % CODES];
            place += 1;
        }
        i += 1;
    }
    groups
}

/// Signs of eight numbers by the first seven, in iq2_xxs, iq2_xs and iq3_xxs: the number of
/// negative signs is even.
pub(super) static SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut i = 0;
    while i < 128 {
        let seven = i as u8;
        signs[i] = seven | ((seven.count_ones() as u8 & 1) << 7);
        i += 1;
    }
    signs
};

/// Magnitudes in the iq2 formats; three of the four codes are used.
const IQ2: [i8; 4] = [8, 25, 43, 0];

pub(super) static IQ1_S: [[i8; 8]; 2048] = unpack(0, [-1, 0, 1, 0]);
pub(super) static IQ2_XXS: [[i8; 8]; 256] = unpack(2048, IQ2);
pub(super) static IQ2_XS: [[i8; 8]; 512] = unpack(2304, IQ2);
pub(super) static IQ2_S: [[i8; 8]; 1024] = unpack(2816, IQ2);
pub(super) static IQ3_XXS: [[i8; 4]; 256] = unpack(3840, [4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[i8; 4]; 512] = unpack(4096, [1, 3, 5, 7, 9, 11, 13, 15]);
