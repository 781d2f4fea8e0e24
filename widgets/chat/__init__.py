"""Widgets of a chat: messages as markdown, the composer, the list of chats, popovers.

Text to pixels: `reasoning`, `marks`, `highlight`, `markdown` (lines and spans), `formats`,
`document` (QTextDocument), `message_text`, `message_view`, `transcript`, `reading_place`. Beside
it: `records`, `composer`, `meters`, `attachments`, `conversation_items`, `conversation_list`,
`empty_state`, `sampling_popover`, `branch_popover`.
"""
