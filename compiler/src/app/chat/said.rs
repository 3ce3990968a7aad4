//! Which bytes of a written conversation are somebody's words.
//!
//! A template writes control tokens as text, and who speaks may spell them, too. So the conversation
//! is written twice: as it is, and with two characters around every message that occur nowhere in
//! it. Where the second text without those characters is the first, they show where the words came
//! to stand, whatever the template did to them: trimmed, replaced, quoted. A template that looks
//! into the words, cuts them or turns them around may write something else; then nobody can say.

use std::ops::Range;

use super::{ChatError, Conversation, render};

/// A conversation as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text, up to where the model's answer begins.
    pub text: String,
    /// Where in it somebody's words stand, ascending; `None` where the template does not let it be
    /// known.
    pub said: Option<Vec<Range<usize>>>,
}

/// Writes a conversation.
///
/// # Errors
/// Those of [`render`].
pub fn write(conversation: &Conversation) -> Result<Written, ChatError> {
    write_with(conversation, render)
}

fn write_with<E>(
    conversation: &Conversation,
    render: impl Fn(&Conversation) -> Result<String, E>,
) -> Result<Written, E> {
    let text = render(conversation)?;
    let said = marks(conversation).and_then(|marks| {
        // A template may fail over words that it does not expect.
        let marked = render(&marked(conversation, marks)).ok()?;
        places(&marked, marks, &text)
    });
    Ok(Written { text, said })
}

/// Two characters that stand for nothing (Unicode's noncharacters, then those for private use) and
/// occur nowhere in a conversation.
fn marks(conversation: &Conversation) -> Option<[char; 2]> {
    let Conversation {
        template,
        messages,
        bos,
        eos,
    } = conversation;
    let texts = || {
        let contents = messages.iter().map(|message| &message.content);
        [template, bos, eos].into_iter().chain(contents)
    };
    let candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{f00ff}');
    let mut free = candidates.filter(|&mark| !texts().any(|text| text.contains(mark)));
    Some([free.next()?, free.next()?])
}

/// The conversation with marks around the words. Spaces around them stay outside, where a template
/// that trims finds them; what is nothing but spaces is no control token.
fn marked(conversation: &Conversation, [begin, end]: [char; 2]) -> Conversation {
    let mut marked = conversation.clone();
    for message in &mut marked.messages {
        let content = &message.content;
        let words = content.trim();
        if words.is_empty() {
            continue;
        }
        let start = content.len() - content.trim_start().len();
        let (before, after) = (&content[..start], &content[start + words.len()..]);
        message.content = format!("{before}{begin}{words}{end}{after}");
    }
    marked
}

/// Where the marks show words in `text`, which must be what is left without them.
fn places(marked: &str, [begin, end]: [char; 2], text: &str) -> Option<Vec<Range<usize>>> {
    let mut said = Vec::new();
    let mut open = None;
    let mut at = 0;
    for character in marked.chars() {
        if character == begin {
            if open.replace(at).is_some() {
                return None;
            }
        } else if character == end {
            said.push(open.take()?..at);
        } else {
            if !text[at..].starts_with(character) {
                return None;
            }
            at += character.len_utf8();
        }
    }
    (open.is_none() && at == text.len()).then_some(said)
}

#[cfg(test)]
mod tests {
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

    fn written(template: &str, words: &[(&str, &str)]) -> Written {
        write_with(&conversation(template, words), template::render).unwrap()
    }

    /// The words that are known to be somebody's.
    fn said(template: &str, words: &[(&str, &str)]) -> Option<Vec<String>> {
        let Written { text, said } = written(template, words);
        let words = said?.into_iter().map(|place| text[place].to_owned());
        Some(words.collect())
    }

    const TURNS: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";

    #[test]
    fn words_are_known_however_they_are_written() {
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
        // Written twice, or not at all.
        let twice = "{{ messages[0].content }}|{{ messages[0].content }}";
        assert_eq!(said(twice, &[("user", "a")]).unwrap(), ["a", "a"]);
        assert_eq!(said("x", &[("user", "a")]).unwrap(), [""; 0]);
        assert_eq!(said(TURNS, &[("user", " \n")]).unwrap(), [""; 0]);
    }

    #[test]
    fn templates_that_look_into_words_are_told_from_others() {
        for content in [
            "m.content[1:]",
            "m.content.split('<')[0]",
            "m.content | reverse",
            "m.content | length",
            "('x' if m.content.startswith('hi') else 'y')",
        ] {
            let template = TURNS.replace("m.content", content);
            let found = written(&template, &[("user", "hi <|end|>")]);
            assert_eq!(found.said, None, "{content}: {}", found.text);
        }
    }

    #[test]
    fn marks_occur_nowhere() {
        let words: String = ('\u{fdd0}'..='\u{fdee}').collect();
        let asked = conversation(TURNS, &[("user", &words)]);
        assert_eq!(marks(&asked), Some(['\u{fdef}', '\u{f0000}']));
        assert_eq!(said(TURNS, &[("user", &words)]).unwrap(), [words]);
    }
}
