use std::ops::Range;

use super::*;
use crate::options::SHIPPED_VERSION;

fn parts() -> impl Iterator<Item = &'static ShippedPart> {
    KINDS.iter().copied().flatten()
}

/// Update version and digest together.
#[test]
fn version_changes_with_the_text() {
    assert_eq!(SHIPPED_VERSION, 1);
    let expected = "a3fe825b07cfef0a0cb9abaf84b87c5a20e3622a2f82dd42da79eb7f983dc0eb";
    assert_eq!(shipped_digest().to_string(), expected);
}

#[test]
fn every_document_occurs_once() {
    let whole = shipped_text(|_| true);
    let mut bytes = 0;
    for document in parts().flat_map(ShippedPart::documents) {
        assert_eq!(whole.matches(document).count(), 1, "{document}");
        assert!(!document.trim().is_empty(), "{document}");
        bytes += document.len() + 2;
    }
    assert_eq!(whole.len() + 2, bytes);
    assert!((240_000..280_000).contains(&whole.len()), "{}", whole.len());
    assert!(!whole.contains("%%\n") && !whole.contains('\r'));
}

fn document_ranges<'a>(
    text: &str,
    of: impl Iterator<Item = &'a ShippedPart>,
) -> Vec<(usize, usize)> {
    let documents = of.flat_map(ShippedPart::documents);
    let places = documents.filter_map(|d| Some((text.find(d)?, d.len())));
    places.map(|(at, len)| (at, at + len)).collect()
}

fn overlap_bytes(places: &[(usize, usize)], part: &Range<usize>) -> usize {
    let overlap =
        |&(start, end): &(usize, usize)| end.min(part.end).saturating_sub(start.max(part.start));
    places.iter().map(overlap).sum()
}

/// An eighth of the text is about 16 windows of 512 tokens.
#[test]
fn every_stretch_has_the_overall_mix() {
    let foreign = [
        "russian", "chinese", "japanese", "korean", "arabic", "hindi",
    ];
    for without in [&[][..], &foreign] {
        let keep = |part: &ShippedPart| !without.contains(&part.name);
        let text = shipped_text(keep);
        for (kind, eighth) in (0..KINDS.len()).flat_map(|k| (0..8).map(move |e| (k, e))) {
            let of = document_ranges(&text, KINDS[kind].iter());
            let share = |from: usize, to: usize| {
                let stretch = text.len() * from / 8..text.len() * to / 8;
                overlap_bytes(&of, &stretch) as f64 / stretch.len() as f64
            };
            let (found, whole) = (share(eighth, eighth + 1), share(0, 8));
            let said = format!("kind {kind}, eighth {eighth}: {found} of {whole}");
            assert!((found - whole).abs() < 0.06, "{said}");
            assert!(found > 0.4 * whole, "{said}");
        }
        for part in parts().filter(|part| keep(part)) {
            let last = text.len() * 3 / 4..text.len();
            let found = overlap_bytes(&document_ranges(&text, [part].into_iter()), &last);
            assert!(found > 0, "{}", part.name);
        }
    }
}
