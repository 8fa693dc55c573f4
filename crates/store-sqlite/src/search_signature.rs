//! The summary of a client's search terms in the index `connections_search`.
//!
//! A search term is a fact, a tag or a dispatcher. Each term sets a few bits of the signature (a Bloom filter). A
//! client can only match a filter if its signature has all bits of the filter's terms. Whether it matches is decided
//! by the conditions on its row, so a wrong bit costs time, but a missing bit hides a client.
//!
//! The bits are stored. If the terms or the hash change, a migration must set the signatures of all rows to -1.

use domain::ClientInfo;
use serde_json::Value;
use store::ConnectionFilter;

/// The columns of `connections` and `disconnected_clients` that [`SearchColumns`] contains.
pub(crate) const SEARCH_COLUMNS: &str = "search_signature_1, search_signature_2, search_signature_3, \
     search_signature_4, search_fqdn";

/// Assignments that replace [`SEARCH_COLUMNS`] by the values of an `INSERT`.
pub(crate) const REPLACE_SEARCH_COLUMNS: &str = "search_signature_1 = excluded.search_signature_1, \
     search_signature_2 = excluded.search_signature_2, \
     search_signature_3 = excluded.search_signature_3, \
     search_signature_4 = excluded.search_signature_4, search_fqdn = excluded.search_fqdn";

/// Columns of the signature, 64 bits each.
pub(crate) const SIGNATURE_COLUMNS: [&str; 4] = [
    "search_signature_1",
    "search_signature_2",
    "search_signature_3",
    "search_signature_4",
];

/// Number of bits of a term. All of them are in one column, so a filter with one term compares only this
/// column.
const BITS_PER_TERM: u32 = 4;

/// Maximum number of characters of `search_fqdn`.
const MAX_FQDN_CHARS: usize = 64;

/// Separates the key and the value of a term.
const SEPARATOR: u8 = 0x1f;

/// Kind of a search term. The numbers are part of the stored bits.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Fact = 1,
    Tag = 2,
    Dispatcher = 3,
}

/// Values of [`SEARCH_COLUMNS`] for a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SearchColumns {
    pub signature: Signature,
    pub fqdn: Option<String>,
}

impl SearchColumns {
    pub fn of_client(info: &ClientInfo) -> Self {
        Self {
            signature: Signature::of_client(info),
            fqdn: search_fqdn(&info.canonical_facts),
        }
    }
}

/// The bits of several search terms, one number for each of [`SIGNATURE_COLUMNS`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature([u64; SIGNATURE_COLUMNS.len()]);

impl Signature {
    /// Returns the bits of the terms that a client must have to match a filter.
    pub fn of_filter(filter: &ConnectionFilter) -> Self {
        let mut signature = Self::default();
        for (key, value) in &filter.facts {
            signature.add_fact(key, value);
        }
        for (key, value) in &filter.tags {
            signature.add(Kind::Tag, key.bytes(), value.bytes());
        }
        for name in &filter.dispatchers {
            signature.add_dispatcher(name);
        }
        signature
    }

    fn of_client(info: &ClientInfo) -> Self {
        let mut signature = Self::default();
        signature.add_values(&info.canonical_facts, Self::add_fact);
        signature.add_values(&info.tags, |signature, key, value| {
            signature.add(Kind::Tag, key.bytes(), value.bytes());
        });
        for (name, _) in info.dispatchers.as_object().into_iter().flatten() {
            if is_plain(name) {
                signature.add_dispatcher(name);
            } else {
                signature = Self::ALL;
            }
        }
        signature
    }

    /// All bits: every filter checks the row.
    const ALL: Self = Self([u64::MAX; SIGNATURE_COLUMNS.len()]);

    /// The numbers to store, in the order of [`SIGNATURE_COLUMNS`].
    pub fn columns(self) -> [i64; SIGNATURE_COLUMNS.len()] {
        self.0.map(u64::cast_signed)
    }

    /// Adds the members of an object, and the elements of members that are lists.
    fn add_values(&mut self, object: &Value, add: fn(&mut Self, key: &str, value: &str)) {
        for (key, value) in object.as_object().into_iter().flatten() {
            let values = match value {
                Value::Array(elements) => elements,
                // No filter matches an object.
                Value::Object(_) => continue,
                value => std::slice::from_ref(value),
            };
            for value in values {
                match value {
                    Value::Null => {}
                    Value::Bool(true) => add(self, key, "true"),
                    Value::Bool(false) => add(self, key, "false"),
                    Value::String(text) if is_plain(key) && is_plain(text) => add(self, key, text),
                    Value::Number(number) if is_plain(key) && number.is_i64() => {
                        add(self, key, &number.to_string());
                    }
                    // Only SQLite knows the text that the filter compares.
                    _ => *self = Self::ALL,
                }
            }
            if !is_plain(key) {
                *self = Self::ALL;
            }
        }
    }

    /// Adds a fact. Filters ignore the letter case, and the dashes of a UUID.
    fn add_fact(&mut self, key: &str, value: &str) {
        let lowercase = value.bytes().map(|byte| byte.to_ascii_lowercase());
        let is_uuid = matches!(value.len(), 32 | 36) && {
            let mut digits = value.bytes().filter(|byte| *byte != b'-');
            let is_hexadecimal = digits.clone().all(|byte| byte.is_ascii_hexdigit());
            is_hexadecimal && digits.by_ref().count() == 32
        };
        if is_uuid {
            let digits = lowercase.filter(|byte| *byte != b'-');
            self.add(Kind::Fact, key.bytes(), digits);
        } else {
            self.add(Kind::Fact, key.bytes(), lowercase);
        }
    }

    /// Adds a dispatcher. Filters treat `-` and `_` as equal.
    fn add_dispatcher(&mut self, name: &str) {
        let name = name.bytes().map(|byte| match byte {
            b'_' => b'-',
            byte => byte,
        });
        self.add(Kind::Dispatcher, name, [].into_iter());
    }

    fn add(&mut self, kind: Kind, key: impl Iterator<Item = u8>, value: impl Iterator<Item = u8>) {
        let bytes = std::iter::once(kind as u8).chain(key);
        let hash = hash(bytes.chain([SEPARATOR]).chain(value));
        // The lowest bits select the column, and the next bits select the bits in the column.
        let mut bits = 0;
        for number in 0..BITS_PER_TERM {
            bits |= 1 << ((hash >> (2 + 6 * number)) & 63);
        }
        match hash & 3 {
            0 => self.0[0] |= bits,
            1 => self.0[1] |= bits,
            2 => self.0[2] |= bits,
            _ => self.0[3] |= bits,
        }
    }
}

/// Returns whether SQLite reads the text from JSON as it is. A NUL character could end the text.
fn is_plain(text: &str) -> bool {
    !text.bytes().any(|byte| byte == 0)
}

/// Returns the value of the column `search_fqdn`.
fn search_fqdn(facts: &Value) -> Option<String> {
    match facts.get("fqdn") {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(fqdn)) if is_plain(fqdn) => Some(start_of_fqdn(fqdn)),
        // Only SQLite knows the text that the filter compares.
        Some(_) => None,
    }
}

/// Returns the part of an FQDN, or of a prefix of an FQDN, that `search_fqdn` contains.
pub(crate) fn start_of_fqdn(fqdn: &str) -> String {
    let end = fqdn.char_indices().nth(MAX_FQDN_CHARS);
    let end = end.map_or(fqdn.len(), |(index, _)| index);
    fqdn.get(..end).unwrap_or(fqdn).to_ascii_lowercase()
}

/// Returns the FNV-1a hash of the bytes. Its lowest bits are too similar for similar texts, so the finalizer of
/// `SplitMix64` mixes them.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn client(facts: Value, tags: Value, dispatchers: Value) -> SearchColumns {
        SearchColumns::of_client(&ClientInfo {
            canonical_facts: facts,
            tags,
            dispatchers,
            ..ClientInfo::default()
        })
    }

    fn has_all_bits(client: Signature, filter: Signature) -> bool {
        let mut columns = client.0.into_iter().zip(filter.0);
        columns.all(|(client, filter)| client & filter == filter)
    }

    #[test]
    fn the_stored_bits_do_not_change() {
        // If this test fails, a migration must set the signatures of all rows to -1.
        let tags = json!({"region": "us1"});
        let facts = json!({"id": "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF"});
        let stored = client(facts, tags, json!({"rhc_worker": {}})).signature;
        assert_eq!(stored.columns(), EXPECTED);
    }

    const EXPECTED: [i64; 4] = [0, 0, 0, 0];

    #[test]
    fn filters_and_clients_have_the_same_terms() {
        let uuid = "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF";
        let facts = json!({"id": uuid, "fqdn": "Web1", "rack": -7, "list": ["A", true, null]});
        let tags = json!({"Region": "US1", "list": [1, "b"]});
        let stored = client(facts, tags, json!({"rhc_worker-a": {}})).signature;
        assert_ne!(stored, Signature::ALL);
        let conditions: [fn(&mut ConnectionFilter); 9] = [
            |filter| filter.require_fact("id", "0a5d2b9e516347ee9e573bb6d90bdfff"),
            |filter| filter.require_fact("fqdn", "wEB1"),
            |filter| filter.require_fact("rack", "-7"),
            |filter| filter.require_fact("list", "a"),
            |filter| filter.require_fact("list", "true"),
            |filter| filter.require_tag("Region", "US1"),
            |filter| filter.require_tag("list", "1"),
            |filter| filter.require_tag("list", "b"),
            |filter| filter.require_dispatcher("rhc-worker_a"),
        ];
        let mut all_conditions = ConnectionFilter::default();
        for require in conditions {
            let mut filter = ConnectionFilter::default();
            require(&mut filter);
            require(&mut all_conditions);
            assert!(has_all_bits(stored, Signature::of_filter(&filter)));
        }
        assert!(has_all_bits(stored, Signature::of_filter(&all_conditions)));
        let mut wrong_case = ConnectionFilter::default();
        wrong_case.require_tag("region", "us1");
        assert!(!has_all_bits(stored, Signature::of_filter(&wrong_case)));
    }

    #[test]
    fn few_other_terms_have_the_same_bits() {
        let facts: serde_json::Map<String, Value> = (0..16)
            .map(|number| (format!("fact{number}"), json!(format!("value{number}"))))
            .collect();
        let stored = client(facts.into(), json!({}), json!({})).signature;
        let has_bits = |number: &usize| {
            let mut filter = ConnectionFilter::default();
            filter.require_tag("region", &format!("us{number}"));
            has_all_bits(stored, Signature::of_filter(&filter))
        };
        let wrong = (0..10_000).filter(has_bits).count();
        assert!(wrong < 200, "{wrong} of 10,000 terms");
    }

    #[test]
    fn values_that_only_sqlite_can_convert_set_all_bits() {
        for value in [
            json!(1.5),
            json!(u64::MAX),
            json!([["a"]]),
            json!([{}]),
            json!("a\0b"),
        ] {
            let tags = json!({"key": value});
            assert_eq!(client(json!({}), tags, json!({})).signature, Signature::ALL);
        }
        let tags = json!({"a\0": "b"});
        assert_eq!(client(json!({}), tags, json!({})).signature, Signature::ALL);
        let dispatchers = json!({"a\0": {}});
        let stored = client(json!({}), json!({}), dispatchers);
        assert_eq!(stored.signature, Signature::ALL);
    }

    #[test]
    fn the_fqdn_is_shortened_and_in_lower_case() {
        let fqdn_of = |facts: Value| client(facts, json!({}), json!({})).fqdn;
        assert_eq!(fqdn_of(json!({"fqdn": "Web1.Ä"})).unwrap(), "web1.Ä");
        assert_eq!(
            fqdn_of(json!({"fqdn": "ä".repeat(99)})).unwrap(),
            "ä".repeat(64)
        );
        assert_eq!(fqdn_of(json!({})).unwrap(), "");
        assert_eq!(fqdn_of(json!({"fqdn": null})).unwrap(), "");
        assert_eq!(fqdn_of(json!({"fqdn": ["web1"]})), None);
        assert_eq!(fqdn_of(json!({"fqdn": 7})), None);
    }
}
