use proptest::prelude::*;

use super::*;

fn learnt() -> TrainedDraft {
    let part = |layer, numbers: &[f32]| TrainedMatrix {
        layer,
        rows: 2,
        cols: 3,
        numbers: numbers.to_vec(),
    };
    TrainedDraft {
        kind: ParameterKind::Bases,
        draft: Digest::of_bytes(b"draft"),
        model: Digest::of_bytes(b"model"),
        samples: 77,
        matrices: vec![
            part(0, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
            part(4, &[0.0, 0.0, -1.0, 0.5, 0.5, 0.0]),
        ],
    }
}

fn is_foreign<T>(result: Result<T, HtzError>) -> bool {
    result.is_err_and(|error| matches!(error.without_path(), HtzError::NotTrainedDraft))
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let digest = Digest::of_bytes(&bytes);
    bytes.extend(digest.0);
    bytes
}

#[test]
fn written_file_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    assert!(TrainedDraft::read(&path).unwrap().is_none());
    for samples in [1, 2] {
        let of = TrainedDraft {
            samples,
            ..learnt()
        };
        of.write(&path).unwrap();
        assert_eq!(TrainedDraft::read(&path).unwrap(), Some(of));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn foreign_file_is_neither_read_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for text in ["", "notes", "notes that are longer than any magic"] {
        std::fs::write(&path, text).unwrap();
        assert!(is_foreign(TrainedDraft::read(&path)));
        assert!(is_foreign(learnt().write(&path)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn truncation_and_bit_flips_are_detected() {
    let bytes = learnt().to_bytes();
    for length in 0..bytes.len() {
        assert!(TrainedDraft::parse(&bytes[..length]).is_err(), "{length}");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert!(TrainedDraft::parse(&bytes).is_err(), "{at}");
    }
}

#[test]
fn invalid_contents_under_a_valid_digest_are_damage() {
    let whole = learnt().to_bytes();
    let whole = &whole[..whole.len() - DIGEST_BYTES];
    let count = MAGIC.len() + 4 + 64 + 8;
    for (at, number, says) in [
        (10, 9_u32, "kind"),
        (count, u32::MAX, "more matrices"),
        (count, 3, "bytes are needed"),
        (count, 1, "follows"),
        (count + 8, u32::MAX, "wider"),
        (count + 8, MAX_WIDTH as u32, "bytes are needed"),
        (count + 16, f32::NAN.to_bits(), "finite"),
    ] {
        let mut bytes = whole.to_vec();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let error = TrainedDraft::parse(&sealed(bytes)).unwrap_err();
        assert!(
            matches!(error, HtzError::DamagedTrainedDraft { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut bytes = whole.to_vec();
    bytes[8] = 2;
    let error = TrainedDraft::parse(&sealed(bytes)).unwrap_err();
    assert!(matches!(error, HtzError::TrainedDraftVersion { found: 2 }));
}

proptest! {
    #[test]
    fn arbitrary_bytes_fail_or_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut all = MAGIC.to_vec();
        all.extend([1, 0]);
        all.extend(bytes);
        let all = sealed(all);
        if let Ok(found) = TrainedDraft::parse(&all) {
            prop_assert_eq!(found.to_bytes(), all);
        }
    }
}
