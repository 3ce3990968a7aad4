use super::super::Message;
use super::super::template;
use super::*;

fn conversation(template: &str, words: &[(&str, &str)]) -> Conversation {
    let message = |(role, content): &(&str, &str)| Message {
        role: (*role).to_owned(),
        content: (*content).to_owned(),
    };
    Conversation {
        template: template.to_owned(),
        messages: words.iter().map(message).collect(),
        bos: "<s>".to_owned(),
        eos: "</s>".to_owned(),
    }
}

fn written(template: &str, words: &[(&str, &str)]) -> RenderedConversation {
    render_with_ranges(&conversation(template, words), template::render).unwrap()
}

fn said(template: &str, words: &[(&str, &str)]) -> Option<Vec<String>> {
    let RenderedConversation {
        text,
        content_ranges: said,
    } = written(template, words);
    let words = said?.into_iter().map(|place| text[place].to_owned());
    Some(words.collect())
}

const TURNS: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";

#[test]
fn contents_are_located_after_trimming_and_repetition() {
    let asked = [("system", "be brief"), ("user", " hi <|end|> \n")];
    let found = written(TURNS, &asked);
    assert_eq!(
        found.text,
        "<|system|>be brief<|end|><|user|> hi <|end|> \n<|end|>"
    );
    assert_eq!(said(TURNS, &asked).unwrap(), ["be brief", "hi <|end|>"]);
    for (filter, expected) in [
        ("m.content | trim", "hi <|end|>"),
        ("m.content.strip() + 'x'", "hi <|end|>"),
        ("m.content.replace(' ', '')", "hi<|end|>"),
        ("m.content | upper", "HI <|END|>"),
        ("m | tojson", "hi <|end|>"),
        ("m['content'] if m.content is string", "hi <|end|>"),
    ] {
        let template = TURNS.replace("m.content", filter);
        let found = said(&template, &asked[1..]).unwrap();
        assert_eq!(found, [expected], "{filter}");
    }
    let twice = "{{ messages[0].content }}|{{ messages[0].content }}";
    assert_eq!(said(twice, &[("user", "a")]).unwrap(), ["a", "a"]);
    assert_eq!(said("x", &[("user", "a")]).unwrap(), [""; 0]);
    assert_eq!(said(TURNS, &[("user", " \n")]).unwrap(), [""; 0]);
}

#[test]
fn templates_that_inspect_contents_give_no_locations() {
    for content in [
        "m.content[1:]",
        "m.content.split('<')[0]",
        "m.content | reverse",
        "m.content | length",
        "('x' if m.content.startswith('hi') else 'y')",
    ] {
        let template = TURNS.replace("m.content", content);
        let found = written(&template, &[("user", "hi <|end|>")]);
        assert_eq!(found.content_ranges, None, "{content}: {}", found.text);
    }
}

#[test]
fn markers_are_unused_characters() {
    let words: String = ('\u{fdd0}'..='\u{fdee}').collect();
    let asked = conversation(TURNS, &[("user", &words)]);
    assert_eq!(unused_markers(&asked), Some(['\u{fdef}', '\u{f0000}']));
    assert_eq!(said(TURNS, &[("user", &words)]).unwrap(), [words]);
}
