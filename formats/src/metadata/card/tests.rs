use super::*;

fn card(text: &str) -> Facts {
    facts_of_files(&BTreeMap::from([(README.to_owned(), text.to_owned())]))
}

#[test]
fn front_matter_of_published_cards_is_read() {
    let facts = card(
        "---\r\nlicense: other\r\nlicense_name: \"a b\" # comment\r\ntags:\r\n- one\r\n  - 'two'\r\n\
         language: [en, de]\r\npipeline_tag: text-generation\r\n# comment\r\n\r\n\
         base_model:\r\n- group/base\r\n- local\r\ndatasets: []\r\nwidget:\r\n- text: hello\r\n  \
         title: x\r\nextra: |\r\n  lines\r\n---\r\nlicense: body\r\n",
    );
    assert_eq!(facts.texts["general.license"], "other");
    assert_eq!(facts.texts["general.license.name"], "a b");
    assert_eq!(
        facts.lists["general.tags"],
        ["one", "two", "text-generation"]
    );
    assert_eq!(facts.lists["general.languages"], ["en", "de"]);
    let bases: Vec<String> = facts.base_models.iter().map(Repository::id).collect();
    assert_eq!(bases, ["group/base", "local"]);
    assert_eq!(facts.others, ["datasets", "widget", "extra"]);
}

#[test]
fn cards_without_front_matter_have_no_facts() {
    for text in [
        "",
        "---",
        "---\n",
        "--- license: x",
        "# a\n---\nlicense: x\n---\n",
        "---\nlicense: x\n",
    ] {
        assert_eq!(card(text), Facts::default(), "{text:?}");
    }
}

#[test]
fn every_beginning_of_a_card_is_read() {
    let whole = "---\nlicense: \"a\ntags: [a, 'b\n- \"c\n  x: |\n:\n- \n--- \n";
    for end in 0..=whole.len() {
        let _ = card(&whole[..end]);
        let _ = card(&whole[end..]);
    }
}

#[test]
fn facts_survive_in_both_containers() {
    let facts = card(
        "---\nlicense: mit\nmodel_creator: \"Åsa: x\"\ntags:\n- a\nlanguage: en\n\
         base_model: group/base\ndatasets:\n- group/data\n- other/data\n---\n",
    );
    assert!(facts.others.is_empty() && facts.datasets.len() == 2);
    let entries = facts.entries();
    assert_eq!(facts_of_entries(&entries), facts);
    assert_eq!(card(&facts.front_matter()), facts);
}

#[test]
fn repositories_of_a_gguf_are_bounded() {
    let text = |text: &str| Value::String(text.to_owned());
    let entries = [
        ("general.base_model.4000000000.name", text("far")),
        ("general.base_model.2.name", text("third")),
        ("general.base_model.0.version", text("1")),
        ("general.base_model.x.name", text("none")),
        ("general.tags", text("no list")),
    ];
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    let facts = facts_of_entries(&entries);
    assert_eq!(facts.base_models.len(), 1);
    assert_eq!(facts.base_models[0].id(), "third");
    assert_eq!(facts.others.len(), 4, "{:?}", facts.others);
}
