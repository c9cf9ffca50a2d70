"""Reading the audit log: pages, export, and the proof that nothing was taken out or changed. Writing is `kit.unit`'s."""
