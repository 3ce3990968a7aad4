use htc_loader::kv::KvType;

use super::*;

fn key(text: &[u8], context: usize) -> Key {
    Key {
        windows: Digest::of_bytes(text),
        context,
        kv: KvOptions::new(KvType::F16),
        model: 1,
    }
}

#[test]
fn windows_are_kept_until_what_they_depend_on_changes() {
    let mut kept = ReferenceLogits::default();
    kept.prepare(key(b"text", 8), 4, 2);
    assert!(kept.keeps(1) && !kept.keeps(2) && !kept.has(0));
    kept.logits.extend([1.0; 4]);
    assert!(kept.has(0) && !kept.has(1));
    kept.prepare(key(b"text", 8), 4, 2);
    assert!(kept.has(0));
    let other = Key {
        model: 2,
        ..key(b"text", 8)
    };
    let of_f32 = Key {
        kv: KvOptions::new(KvType::F32),
        ..key(b"text", 8)
    };
    for key in [key(b"other", 8), key(b"text", 16), other, of_f32] {
        kept.prepare(key, 4, 2);
        assert!(!kept.has(0), "{key:?}");
        kept.logits.extend([1.0; 4]);
    }
}

#[test]
fn no_more_windows_are_kept_than_fit() {
    let mut kept = ReferenceLogits::default();
    kept.prepare(key(b"text", 8), MAX_KEPT / 2 + 1, 3);
    assert_eq!(kept.windows, 1);
    let mut unkept = ReferenceLogits::unkept();
    unkept.prepare(key(b"text", 8), 4, 3);
    assert!(!unkept.keeps(0));
}
