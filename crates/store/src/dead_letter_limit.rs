//! The limit on the number of dead letters of all clients together.

use std::collections::BTreeMap;

use crate::MAINTENANCE_CHUNK_ROWS;
use crate::dead_letters::DeadLetterRepository;
use crate::error::Result;

/// Maximum number of clients per query. The limit per client bounds the number of rows that the
/// query reads.
const CLIENTS_PER_QUERY: u32 = 500;

/// Deletes dead letters until at most `max_dead_letters` remain. Returns the number of deleted dead
/// letters.
///
/// Deletes the oldest dead letters of the clients with the most dead letters, so a client with many
/// dead letters cannot evict the dead letters of the other clients. If even one dead letter per
/// client is too much, deletes the oldest of these. Such a number of clients is possible because an
/// unauthenticated client can publish under invented client ids.
///
/// # Errors
/// If the database is unavailable. The function can then have deleted a part of the dead letters.
pub async fn enforce_dead_letter_limit(
    dead_letters: &dyn DeadLetterRepository,
    max_dead_letters: u64,
) -> Result<u64> {
    let counts = read_counts(dead_letters).await?;
    let Some(share) = counts.fair_share(max_dead_letters) else {
        return Ok(0);
    };
    let mut deleted_count = trim_clients(dead_letters, share).await?;
    let clients = counts.client_count();
    if clients > max_dead_letters {
        deleted_count += delete_oldest(dead_letters, clients - max_dead_letters).await?;
    }
    Ok(deleted_count)
}

/// Numbers of clients by their number of dead letters. The size does not depend on the number of
/// clients.
#[derive(Debug, Default)]
struct Counts {
    clients_by_dead_letters: BTreeMap<u64, u64>,
}

/// The number of dead letters that each client may keep. A client with fewer dead letters keeps all
/// of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FairShare {
    dead_letters_per_client: u64,
    /// Number of clients that may keep one more dead letter.
    clients_with_one_more: u64,
}

impl Counts {
    fn client_count(&self) -> u64 {
        self.clients_by_dead_letters.values().sum()
    }

    /// Returns the largest share with which at most `max_dead_letters` remain. Returns `None` if the
    /// limit is not exceeded. The share is at least one dead letter.
    fn fair_share(&self, max_dead_letters: u64) -> Option<FairShare> {
        // Increases the share from one number of dead letters to the next larger one. In each step,
        // only clients with more dead letters than the share keep more.
        let mut share = 0;
        let mut kept = 0;
        let mut larger_clients = self.client_count();
        for (&dead_letters, &clients) in &self.clients_by_dead_letters {
            let increase = (dead_letters - share) * larger_clients;
            if kept + increase > max_dead_letters {
                let unused = max_dead_letters - kept;
                share += unused / larger_clients;
                return Some(if share == 0 {
                    FairShare {
                        dead_letters_per_client: 1,
                        clients_with_one_more: 0,
                    }
                } else {
                    FairShare {
                        dead_letters_per_client: share,
                        clients_with_one_more: unused % larger_clients,
                    }
                });
            }
            share = dead_letters;
            kept += increase;
            larger_clients -= clients;
        }
        None
    }
}

async fn read_counts(dead_letters: &dyn DeadLetterRepository) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut last_client: Option<String> = None;
    loop {
        let page = dead_letters
            .count_dead_letters_by_client(last_client.as_deref(), CLIENTS_PER_QUERY)
            .await?;
        for client in &page {
            let clients = counts.clients_by_dead_letters.entry(client.dead_letters);
            *clients.or_default() += 1;
        }
        match page.into_iter().next_back() {
            Some(last) => last_client = Some(last.client_id),
            None => return Ok(counts),
        }
    }
}

/// Deletes the oldest dead letters of each client above the client's share.
async fn trim_clients(dead_letters: &dyn DeadLetterRepository, share: FairShare) -> Result<u64> {
    let FairShare {
        dead_letters_per_client,
        mut clients_with_one_more,
    } = share;
    let mut deleted_count = 0;
    let mut last_client: Option<String> = None;
    loop {
        let page = dead_letters
            .count_dead_letters_by_client(last_client.as_deref(), CLIENTS_PER_QUERY)
            .await?;
        let mut clients: Vec<&str> = Vec::new();
        let mut clients_keeping_one_more: Vec<&str> = Vec::new();
        for client in &page {
            if client.dead_letters <= dead_letters_per_client {
                continue;
            }
            if clients_with_one_more > 0 {
                clients_with_one_more -= 1;
                clients_keeping_one_more.push(&client.client_id);
            } else {
                clients.push(&client.client_id);
            }
        }
        for (client_ids, kept) in [
            (clients, dead_letters_per_client),
            (clients_keeping_one_more, dead_letters_per_client + 1),
        ] {
            deleted_count += trim(dead_letters, &client_ids, kept).await?;
        }
        match page.into_iter().next_back() {
            Some(last) => last_client = Some(last.client_id),
            None => return Ok(deleted_count),
        }
    }
}

async fn trim(
    dead_letters: &dyn DeadLetterRepository,
    client_ids: &[&str],
    kept_per_client: u64,
) -> Result<u64> {
    let mut deleted_count = 0;
    while !client_ids.is_empty() {
        let deleted = dead_letters
            .trim_dead_letters(client_ids, kept_per_client, MAINTENANCE_CHUNK_ROWS)
            .await?;
        deleted_count += deleted;
        if deleted < MAINTENANCE_CHUNK_ROWS.into() {
            break;
        }
    }
    Ok(deleted_count)
}

async fn delete_oldest(dead_letters: &dyn DeadLetterRepository, count: u64) -> Result<u64> {
    let mut deleted_count = 0;
    while deleted_count < count {
        let chunk = u32::try_from(count - deleted_count).unwrap_or(MAINTENANCE_CHUNK_ROWS);
        let chunk = chunk.min(MAINTENANCE_CHUNK_ROWS);
        let deleted = dead_letters.delete_oldest_dead_letters(chunk).await?;
        deleted_count += deleted;
        if deleted == 0 {
            break;
        }
    }
    Ok(deleted_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(dead_letters_by_client: &[u64], max_dead_letters: u64) -> Option<(u64, u64)> {
        let mut counts = Counts::default();
        for dead_letters in dead_letters_by_client {
            let clients = counts.clients_by_dead_letters.entry(*dead_letters);
            *clients.or_default() += 1;
        }
        let share = counts.fair_share(max_dead_letters);
        share.map(|share| (share.dead_letters_per_client, share.clients_with_one_more))
    }

    #[test]
    fn clients_with_few_dead_letters_keep_all_of_them() {
        assert_eq!(share(&[], 0), None);
        assert_eq!(share(&[1, 2, 3], 6), None);
        assert_eq!(share(&[1, 1, 100], 10), Some((8, 0)));
        assert_eq!(share(&[1, 1, 5, 5, 5], 10), Some((2, 2)));
        assert_eq!(share(&[20, 20, 20], 7), Some((2, 1)));
    }

    #[test]
    fn every_client_keeps_one_dead_letter_before_the_oldest_are_deleted() {
        assert_eq!(share(&[1, 1, 1], 2), Some((1, 0)));
        assert_eq!(share(&[5, 1, 1], 2), Some((1, 0)));
        assert_eq!(share(&[1, 1], 0), Some((1, 0)));
    }
}
