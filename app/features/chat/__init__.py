"""Chats: sending messages, generating replies, branches, drafts, files.

A message from Send to paint: `page` -> `controller` -> `generation` -> (link) -> `conversation` ->
`presenter` -> `widgets.chat.transcript`. Its data: `conversation`, `figures`, `reply_data`,
`attachments`, `sampling`. While it is generated: `open_reply`, `state_watch` and `states` (what it
waits for), `cause_recorder` (why gaps are long). After it: `continuation`, `titles`. Its inspector:
`inspection`, `inspector`, `inspector_view`. Saving: `saving`, `shelf`, `library`, `last_chat`,
`recovery_work`. Files: `files`, `markdown`, `file_actions`. The page: `page`, `panes`, `presenter`,
`records`, `labels`, `draft`, `popovers`.
"""
