//! The summary of a client's search terms in the index `connections_search`.
//!
//! A search term is a fact, a tag, a dispatcher or a prefix of the FQDN. Each term sets a few bits of the signature (a Bloom filter). A
//! client can only match a filter if its signature has all bits of the filter's terms. Whether it matches is decided
//! by the conditions on its row, so a wrong bit costs time, but a missing bit hides a client.
//!
//! The bits are stored. If the terms or the hash change, a migration must set the signatures of all rows to -1.

use domain::ClientInfo;
use serde_json::Value;
use store::ConnectionFilter;

/// Columns of the signature, 64 bits each. Two, because larger rows make recording slower.
pub(crate) const SIGNATURE_COLUMNS: [&str; 2] = ["search_signature_1", "search_signature_2"];

/// The list of [`SIGNATURE_COLUMNS`] in a statement.
pub(crate) const SIGNATURE_COLUMN_LIST: &str = "search_signature_1, search_signature_2";

/// Assignments that replace [`SIGNATURE_COLUMNS`] by the values of an `INSERT`.
pub(crate) const REPLACE_SIGNATURE: &str = "search_signature_1 = excluded.search_signature_1, \
     search_signature_2 = excluded.search_signature_2";

/// Condition that an upsert does not change the signature.
pub(crate) const HAS_SAME_SIGNATURE: &str = "connections.search_signature_1 = excluded.search_signature_1 \
     AND connections.search_signature_2 = excluded.search_signature_2";

/// Number of bits of a term. All of them are in one column, so a filter with one term compares only this
/// column.
const BITS_PER_TERM: u32 = 4;

/// Lengths in bytes of the prefixes of an FQDN that have bits.
const FQDN_PREFIX_LENGTHS: [usize; 4] = [4, 6, 8, 12];

/// Separates the key and the value of a term.
const SEPARATOR: u8 = 0x1f;

/// Kind of a search term. The numbers are part of the stored bits.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Fact = 1,
    Tag = 2,
    Dispatcher = 3,
    FqdnPrefix = 4,
}

/// Returns the values of [`SIGNATURE_COLUMNS`] for a client.
pub(crate) fn signature_of_client(info: &ClientInfo) -> [i64; SIGNATURE_COLUMNS.len()] {
    let mut signature = Signature::default();
    signature.add_values(Kind::Fact, &info.canonical_facts);
    signature.add_values(Kind::Tag, &info.tags);
    for (name, _) in info.dispatchers.as_object().into_iter().flatten() {
        signature.add_if_plain(Kind::Dispatcher, name, "");
    }
    match info.canonical_facts.get("fqdn") {
        None | Some(Value::Null) => {}
        Some(Value::String(fqdn)) => {
            let lengths = FQDN_PREFIX_LENGTHS.into_iter();
            for length in lengths.filter(|length| *length <= fqdn.len()) {
                signature.add_prefix(fqdn, length);
            }
        }
        // Only SQLite knows the text that it compares with the filter.
        Some(_) => signature.set_all(),
    }
    signature.columns()
}

/// Returns the bits of [`SIGNATURE_COLUMNS`] that a client must have to match a filter, except for the prefixes of
/// the filter.
pub(crate) fn signature_of_filter(filter: &ConnectionFilter) -> [i64; SIGNATURE_COLUMNS.len()] {
    let mut signature = Signature::default();
    for (key, value) in &filter.facts {
        signature.add(Kind::Fact, key, value);
    }
    for (key, value) in &filter.tags {
        signature.add(Kind::Tag, key, value);
    }
    for name in &filter.dispatchers {
        signature.add(Kind::Dispatcher, name, "");
    }
    signature.columns()
}

/// Returns the bits of [`SIGNATURE_COLUMNS`] that a client must have if its FQDN has this prefix. The bits are all
/// 0 if the prefix is too short.
pub(crate) fn signature_of_prefix(prefix: &str) -> [i64; SIGNATURE_COLUMNS.len()] {
    let mut signature = Signature::default();
    let mut lengths = FQDN_PREFIX_LENGTHS.into_iter().rev();
    if let Some(length) = lengths.find(|length| *length <= prefix.len()) {
        signature.add_prefix(prefix, length);
    }
    signature.columns()
}

/// Collects the bits of search terms.
#[derive(Debug, Default)]
struct Signature {
    bits: [u64; SIGNATURE_COLUMNS.len()],
    /// The current term.
    term: Vec<u8>,
}

impl Signature {
    fn columns(&self) -> [i64; SIGNATURE_COLUMNS.len()] {
        self.bits.map(u64::cast_signed)
    }

    /// Sets all bits: every filter checks the row.
    fn set_all(&mut self) {
        self.bits = [u64::MAX; SIGNATURE_COLUMNS.len()];
    }

    /// Adds the members of an object, and the elements of members that are lists.
    fn add_values(&mut self, kind: Kind, object: &Value) {
        for (key, member) in object.as_object().into_iter().flatten() {
            let values = match member {
                Value::Array(elements) => elements,
                // No filter matches an object.
                Value::Object(_) => continue,
                value => std::slice::from_ref(value),
            };
            for value in values {
                match value {
                    Value::Null => {}
                    Value::Bool(true) => self.add_if_plain(kind, key, "true"),
                    Value::Bool(false) => self.add_if_plain(kind, key, "false"),
                    Value::String(text) => self.add_if_plain(kind, key, text),
                    Value::Number(number) if number.is_i64() => {
                        self.add_if_plain(kind, key, &number.to_string());
                    }
                    // Only SQLite knows the text that it compares with the filter.
                    Value::Number(_) | Value::Array(_) | Value::Object(_) => self.set_all(),
                }
            }
        }
    }

    /// Adds a term. Sets all bits if the term has a NUL character, because SQLite could end the text there.
    fn add_if_plain(&mut self, kind: Kind, key: &str, value: &str) {
        if key.contains('\0') || value.contains('\0') {
            self.set_all();
        } else {
            self.add(kind, key, value);
        }
    }

    /// Adds the first bytes of an FQDN or of a prefix, which has at least `length` bytes.
    fn add_prefix(&mut self, text: &str, length: usize) {
        self.term.clear();
        self.term.push(Kind::FqdnPrefix as u8);
        self.term.extend_from_slice(&text.as_bytes()[..length]);
        self.term.make_ascii_lowercase();
        self.add_term();
    }

    /// Adds a term. Terms that a filter treats as equal have the same bits.
    fn add(&mut self, kind: Kind, key: &str, value: &str) {
        let term = &mut self.term;
        term.clear();
        term.push(kind as u8);
        term.extend_from_slice(key.as_bytes());
        if matches!(kind, Kind::Dispatcher) {
            for byte in term.iter_mut().filter(|byte| **byte == b'_') {
                *byte = b'-';
            }
        }
        term.push(SEPARATOR);
        let start = term.len();
        term.extend_from_slice(value.as_bytes());
        if matches!(kind, Kind::Fact) {
            normalize_fact(term, start);
        }
        self.add_term();
    }

    fn add_term(&mut self) {
        let hash = hash(&self.term);
        let mut bits = 0;
        for number in 0..BITS_PER_TERM {
            bits |= 1 << ((hash >> (1 + 6 * number)) & 63);
        }
        let [first, second] = &mut self.bits;
        let column = if hash & 1 == 0 { first } else { second };
        *column |= bits;
    }
}

/// Converts the value of a fact, which begins at `start`, to lower case, and removes the dashes of a UUID.
fn normalize_fact(term: &mut Vec<u8>, start: usize) {
    let value = &mut term[start..];
    value.make_ascii_lowercase();
    if !matches!(value.len(), 32 | 36) {
        return;
    }
    let mut digits = value.iter().filter(|byte| **byte != b'-');
    if digits.all(u8::is_ascii_hexdigit) && value.iter().filter(|byte| **byte != b'-').count() == 32
    {
        let mut position = 0;
        term.retain(|byte| {
            position += 1;
            position <= start || *byte != b'-'
        });
    }
}

/// Returns a hash that does not depend on the version of a library. The last lines are those of `SplitMix64`.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut number = [0; 8];
        number[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn client(facts: Value, tags: Value, dispatchers: Value) -> [i64; 2] {
        signature_of_client(&ClientInfo {
            canonical_facts: facts,
            tags,
            dispatchers,
            ..ClientInfo::default()
        })
    }

    fn has_all_bits(client: [i64; 2], filter: [i64; 2]) -> bool {
        let mut columns = client.into_iter().zip(filter);
        columns.all(|(client, filter)| client & filter == filter)
    }

    #[test]
    fn the_stored_bits_do_not_change() {
        // If this test fails, a migration must set the signatures of all rows to -1.
        let tags = json!({"region": "us1"});
        let facts = json!({"id": "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF"});
        let stored = client(facts, tags, json!({"rhc_worker": {}}));
        assert_eq!(stored, EXPECTED);
    }

    const EXPECTED: [i64; 2] = [2_377_973_240_342_511_616, 18_014_398_534_909_952];

    #[test]
    fn filters_and_clients_have_the_same_terms() {
        let uuid = "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF";
        let facts = json!({"id": uuid, "fqdn": "Web1", "rack": -7, "list": ["A", true, null]});
        let tags = json!({"Region": "US1", "list": [1, "b"]});
        let stored = client(facts, tags, json!({"rhc_worker-a": {}}));
        assert_ne!(stored, [-1, -1]);
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
            assert!(has_all_bits(stored, signature_of_filter(&filter)));
        }
        assert!(has_all_bits(stored, signature_of_filter(&all_conditions)));
        let mut wrong_case = ConnectionFilter::default();
        wrong_case.require_tag("region", "us1");
        assert!(!has_all_bits(stored, signature_of_filter(&wrong_case)));
    }

    #[test]
    fn a_client_has_the_bits_of_each_prefix_of_its_fqdn() {
        let fqdn = "Wéb1.Example.com";
        let stored = client(json!({"fqdn": fqdn}), json!({}), json!({}));
        for end in (0..=fqdn.len()).filter(|end| fqdn.is_char_boundary(*end)) {
            let prefix = fqdn[..end].to_ascii_lowercase();
            let bits = signature_of_prefix(&prefix);
            assert!(has_all_bits(stored, bits), "{prefix}");
            assert_eq!(bits == [0, 0], end < 4, "{prefix}");
        }
        assert!(!has_all_bits(stored, signature_of_prefix("other.example")));
        let facts = json!({"fqdn": ["web1"]});
        assert_eq!(client(facts, json!({}), json!({})), [-1, -1]);
    }

    #[test]
    fn few_other_terms_have_the_same_bits() {
        let facts: serde_json::Map<String, Value> = (0..16)
            .map(|number| (format!("fact{number}"), json!(format!("value{number}"))))
            .collect();
        let stored = client(facts.into(), json!({}), json!({}));
        let has_bits = |number: &usize| {
            let mut filter = ConnectionFilter::default();
            filter.require_tag("region", &format!("us{number}"));
            has_all_bits(stored, signature_of_filter(&filter))
        };
        let wrong = (0..10_000).filter(has_bits).count();
        assert!(wrong < 500, "{wrong} of 10,000 terms");
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
            assert_eq!(client(json!({}), tags, json!({})), [-1, -1]);
        }
        let tags = json!({"a\0": "b"});
        assert_eq!(client(json!({}), tags, json!({})), [-1, -1]);
        let dispatchers = json!({"a\0": {}});
        let stored = client(json!({}), json!({}), dispatchers);
        assert_eq!(stored, [-1, -1]);
    }
}
