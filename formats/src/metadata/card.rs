//! Facts of a model card: the YAML at the head of a `README.md`, or `general.*` of a GGUF, named as
//! by llama.cpp's converter.

use std::collections::BTreeMap;

use crate::gguf::{Array, FromValue as _, Value};

/// File of the model card.
pub(super) const README: &str = "README.md";

/// Key of a text in a model card, and in a GGUF.
const TEXTS: [(&str, &str); 4] = [
    ("license", "general.license"),
    ("license_name", "general.license.name"),
    ("license_link", "general.license.link"),
    ("model_creator", "general.author"),
];

/// Key of a list in a model card, and in a GGUF.
const LISTS: [(&str, &str); 2] = [("tags", "general.tags"), ("language", "general.languages")];

/// Key of a list of repositories in a model card, and its prefix in a GGUF.
const REPOSITORIES: [(&str, &str); 2] = [
    ("base_model", "general.base_model"),
    ("datasets", "general.dataset"),
];

/// The task is a tag in a GGUF.
const TASK: &str = "pipeline_tag";

const HUB: &str = "https://huggingface.co/";

/// A model or data set on a hub.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Repository {
    pub name: String,
    pub organization: Option<String>,
    pub url: Option<String>,
}

impl Repository {
    fn from_id(id: &str) -> Repository {
        let (organization, name) = match id.split_once('/') {
            Some((organization, name)) => (Some(organization.to_owned()), name),
            None => (None, id),
        };
        let url = organization.is_some().then(|| format!("{HUB}{id}"));
        Repository {
            name: name.to_owned(),
            organization,
            url,
        }
    }

    /// Returns the identifier on the hub, `organization/name`.
    pub fn id(&self) -> String {
        let of_url = self.url.as_deref().and_then(|url| url.strip_prefix(HUB));
        match (of_url, &self.organization) {
            (Some(id), _) => id.to_owned(),
            (None, Some(organization)) => format!("{organization}/{}", self.name),
            (None, None) => self.name.clone(),
        }
    }
}

/// Facts of a model card. Keys are those of a GGUF.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub texts: BTreeMap<&'static str, String>,
    pub lists: BTreeMap<&'static str, Vec<String>>,
    pub base_models: Vec<Repository>,
    pub datasets: Vec<Repository>,
    /// Keys without a place in these facts, as the source has them.
    pub others: Vec<String>,
}

impl Facts {
    pub fn text(&self, key: &str) -> Option<String> {
        self.texts.get(key).cloned()
    }

    fn is_empty(&self) -> bool {
        let Facts {
            texts,
            lists,
            base_models,
            datasets,
            others: _,
        } = self;
        texts.is_empty() && lists.is_empty() && base_models.is_empty() && datasets.is_empty()
    }

    /// Returns the facts as entries of a GGUF.
    pub fn entries(&self) -> Vec<(String, Value)> {
        let text = |text: &String| Value::String(text.clone());
        let mut entries = Vec::new();
        for (key, value) in &self.texts {
            entries.push(((*key).to_owned(), text(value)));
        }
        for (key, values) in &self.lists {
            let values = Value::Array(Array::String(values.clone()));
            entries.push(((*key).to_owned(), values));
        }
        for ((_, prefix), repositories) in
            REPOSITORIES.iter().zip([&self.base_models, &self.datasets])
        {
            if repositories.is_empty() {
                continue;
            }
            // Lossless: bounded by the lines of a card.
            let count = Value::U32(repositories.len() as u32);
            entries.push((format!("{prefix}.count"), count));
            for (index, repository) in repositories.iter().enumerate() {
                let fields = [
                    ("name", Some(&repository.name)),
                    ("organization", repository.organization.as_ref()),
                    ("repo_url", repository.url.as_ref()),
                ];
                for (field, value) in fields {
                    let key = format!("{prefix}.{index}.{field}");
                    entries.extend(value.map(|value| (key, text(value))));
                }
            }
        }
        entries
    }

    /// Returns the YAML at the head of a model card, between its two lines of dashes.
    pub fn front_matter(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        // A JSON string is a string of YAML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut yaml = "---\n".to_owned();
        for (name, key) in TEXTS {
            if let Some(text) = self.texts.get(key) {
                yaml += &format!("{name}: {}\n", quoted(text));
            }
        }
        let repositories = [&self.base_models, &self.datasets].map(|list| {
            let ids = list.iter().map(Repository::id);
            ids.collect::<Vec<_>>()
        });
        let lists = LISTS.iter().map(|(name, key)| (*name, self.lists.get(key)));
        let repositories = REPOSITORIES.iter().zip(&repositories);
        let repositories = repositories.map(|((name, _), ids)| (*name, Some(ids)));
        for (name, items) in lists.chain(repositories) {
            let items = items.filter(|items| !items.is_empty());
            let Some(items) = items else { continue };
            yaml += &format!("{name}:\n");
            for item in items {
                yaml += &format!("- {}\n", quoted(item));
            }
        }
        yaml + "---\n"
    }
}

/// Returns the facts of the model card of a folder.
pub(super) fn facts_of_files(files: &BTreeMap<String, String>) -> Facts {
    let mut facts = Facts::default();
    let yaml = files.get(README).map_or("", |text| front_matter_of(text));
    for (name, values) in top_level(yaml) {
        let find = |table: &[(&str, &'static str)]| {
            let mut table = table.iter();
            table.find(|(own, _)| *own == name).map(|(_, key)| *key)
        };
        if values.is_empty() {
            facts.others.push(name);
        } else if let Some(key) = find(&TEXTS) {
            facts.texts.insert(key, values.join(", "));
        } else if let Some(key) = find(&LISTS) {
            facts.lists.entry(key).or_default().splice(0..0, values);
        } else if name == TASK {
            facts.lists.entry(LISTS[0].1).or_default().extend(values);
        } else if let Some(prefix) = find(&REPOSITORIES) {
            let list = repositories_mut(&mut facts, prefix);
            list.extend(values.iter().map(|id| Repository::from_id(id)));
        } else {
            facts.others.push(name);
        }
    }
    facts
}

fn repositories_mut<'a>(facts: &'a mut Facts, prefix: &str) -> &'a mut Vec<Repository> {
    if prefix == REPOSITORIES[0].1 {
        &mut facts.base_models
    } else {
        &mut facts.datasets
    }
}

/// Returns the facts of the entries of a GGUF.
pub(super) fn facts_of_entries(entries: &[(String, Value)]) -> Facts {
    let mut facts = Facts::default();
    for (key, value) in entries
        .iter()
        .filter(|(key, _)| key.starts_with("general."))
    {
        let known = |table: &[(&str, &'static str)]| {
            let mut table = table.iter();
            table.find(|(_, own)| own == key).map(|(_, own)| *own)
        };
        let text = <&str>::from_value(value);
        let texts = <&[String]>::from_value(value);
        if let (Some(key), Some(text)) = (known(&TEXTS), text) {
            facts.texts.insert(key, text.to_owned());
        } else if let (Some(key), Some(list)) = (known(&LISTS), texts) {
            facts.lists.insert(key, list.to_vec());
        } else if !set_repository(&mut facts, key, value) {
            facts.others.push(key.clone());
        }
    }
    for list in [&mut facts.base_models, &mut facts.datasets] {
        list.retain(|repository| *repository != Repository::default());
    }
    facts
}

/// Stores the field of a repository; returns false if the entry is none.
fn set_repository(facts: &mut Facts, key: &str, value: &Value) -> bool {
    /// Repositories of a model; published ones have some ten.
    const MOST: usize = 64;
    let prefixes = REPOSITORIES.iter().map(|(_, prefix)| *prefix);
    for prefix in prefixes {
        let Some(field) = key
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            continue;
        };
        if field == "count" {
            return true;
        }
        let Some((index, field)) = field.split_once('.') else {
            return false;
        };
        let (Ok(index), Some(text)) = (index.parse::<usize>(), <&str>::from_value(value)) else {
            return false;
        };
        if index >= MOST {
            return false;
        }
        let list = repositories_mut(facts, prefix);
        if list.len() <= index {
            list.resize(index + 1, Repository::default());
        }
        let repository = &mut list[index];
        match field {
            "name" => repository.name = text.to_owned(),
            "organization" => repository.organization = Some(text.to_owned()),
            "repo_url" => repository.url = Some(text.to_owned()),
            _ => return false,
        }
        return true;
    }
    false
}

/// Returns the YAML between the two lines of dashes at the head of a model card; empty without.
fn front_matter_of(card: &str) -> &str {
    let card = card.strip_prefix('\u{feff}').unwrap_or(card);
    let rest = card.strip_prefix("---").unwrap_or("");
    let Some(rest) = rest.trim_start_matches([' ', '\r']).strip_prefix('\n') else {
        return "";
    };
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return &rest[..end];
        }
        end += line.len();
    }
    ""
}

/// Returns the keys at the top level of a YAML, with the texts of a scalar or a list; without texts
/// for anything else.
fn top_level(yaml: &str) -> Vec<(String, Vec<String>)> {
    let mut entries: Vec<(String, Vec<String>)> = Vec::new();
    // Whether the lines of a list may follow.
    let mut open = false;
    for line in yaml.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if let Some(item) = content.strip_prefix("- ") {
            if let Some((_, values)) = entries.last_mut().filter(|_| open) {
                values.extend(scalar(item));
            }
            continue;
        }
        if line.starts_with([' ', '\t']) {
            // A nested object, or lines of a text.
            if let Some((_, values)) = entries.last_mut() {
                values.clear();
            }
            open = false;
            continue;
        }
        let Some((key, value)) = content.split_once(':') else {
            continue;
        };
        let value = value.trim();
        let inline = value
            .strip_prefix('[')
            .and_then(|list| list.strip_suffix(']'));
        open = value.is_empty();
        let values = match inline {
            Some(list) => list.split(',').filter_map(scalar).collect(),
            None => scalar(value).into_iter().collect(),
        };
        entries.push((key.trim_matches(['"', '\'']).to_owned(), values));
    }
    entries
}

/// Returns the text of a scalar; `None` if it is empty or the head of a text in several lines.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = text.strip_prefix(quote) {
            let end = rest.find(quote)?;
            return Some(rest[..end].to_owned());
        }
    }
    let text = text.split(" #").next().unwrap_or("").trim();
    let is_block = text.starts_with(['|', '>', '{', '&', '*']);
    (!text.is_empty() && !is_block).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
