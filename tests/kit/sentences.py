"""Texts whose speech is measured: the three of the AWS article with their lengths, and twenty everyday sentences."""

# Text -> bytes of 16-bit 24 kHz audio that the AWS article measured.
ARTICLE = {
    "Hello there.": 73_200,
    "This is a post deployment check.": 108_000,
    "It has three sentences.": 98_400,
}

TWENTY = (
    "The train leaves from platform four in ten minutes.",
    "Please press one to speak with a customer service agent.",
    "Your order was shipped yesterday and should arrive on Friday.",
    "I am sorry, but that account number does not match our records.",
    "The weather today is sunny with a light wind from the west.",
    "Can you tell me the last four digits of your phone number?",
    "We have opened a new support ticket for your problem.",
    "Thank you for calling, and have a wonderful day.",
    "The doctor will see you at half past nine in the morning.",
    "She sold six old books at the market last week.",
    "Turn left at the bridge and walk along the river.",
    "My brother plays the guitar in a small jazz band.",
    "This small model runs on a single processor without the internet.",
    "The meeting has been moved to the second floor.",
    "Water boils at one hundred degrees at sea level.",
    "He forgot his umbrella on the bus again.",
    "Our office is closed on public holidays.",
    "A good answer is short, clear and correct.",
    "The children built a castle out of sand and stones.",
    "You can cancel your subscription at any time.",
)

# Four sentences in 267 characters, as long as the text of the AWS article's latency table.
FOUR_SENTENCES = (
    "Thank you for calling our support line today. Your order left the warehouse early this morning and is on its way to your "
    "home. It should arrive on Friday, some time between nine and noon. Is there anything else that I can do for you before you "
    "leave us, sir or madam?"
)
EIGHT_SECONDS = (
    "The quick brown fox jumps over the lazy dog, and then it runs away from the farm before the sun goes down behind the hills."
)
